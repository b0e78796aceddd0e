-- What a sign-in needs: ID tokens that were used, what a session was started from, retired keys without a private half.

-- An ID token starts one session. Its hash is kept until the token has ended.
create table auth.used_id_tokens (
  token_hash bytea primary key,
  ends_at timestamptz not null
);
create index used_id_tokens_end on auth.used_id_tokens (ends_at);

-- Whoever revokes a token ends the sessions and keys that come from it: declared here, so that no statement can forget it.
create function auth.end_sessions() returns trigger language plpgsql set search_path = '' as $$
begin
  update auth.tokens set revoked_at = new.revoked_at where started_from = new.token_id and revoked_at is null;
  return null;
end $$;
create trigger end_sessions after update of revoked_at on auth.tokens
  for each row when (old.revoked_at is null and new.revoked_at is not null) execute function auth.end_sessions();

alter table auth.signing_keys alter sealed_private_key drop not null,
  add constraint retired_keys_are_wiped check ((retired_at is null) = (sealed_private_key is not null));

revoke all on all functions in schema auth from public;
grant select, insert, update, delete on auth.used_id_tokens to teamlore_auth;
grant update (sealed_private_key) on auth.signing_keys to teamlore_auth;
