-- Who may do what. Secrets are kept as hashes, private keys sealed.
create schema auth;

-- One row that every access change bumps in its transaction; all services poll it.
create table auth.access_head (
  single boolean primary key default true check (single),
  version bigint not null default 1
);
insert into auth.access_head default values;

create table auth.tokens (
  token_id text primary key,
  secret_hash bytea not null unique,
  principal text not null,
  kind text not null check (kind in ('person', 'agent', 'service')),
  created_by text not null,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  revoked_at timestamptz
);

create table auth.token_grants (
  token_id text not null references auth.tokens,
  pattern text not null,
  permissions text[] not null,
  primary key (token_id, pattern)
);

create table auth.signing_keys (
  kid text primary key,
  public_key bytea not null,
  sealed_private_key bytea not null,
  created_at timestamptz not null default clock_timestamp()
);

create function auth.bump() returns void language sql as $$ update auth.access_head set version = version + 1 $$;

-- What a token may do, for every service; no row for an unknown token.
create function auth.token_access(token text)
returns table (principal text, kind text, expires_at timestamptz, revoked_at timestamptz, patterns text[],
               permissions text[])
language sql stable security definer set search_path = '' as $$
  select t.principal, t.kind, t.expires_at, t.revoked_at,
         coalesce((select array_agg(g.pattern order by g.pattern) from auth.token_grants g where g.token_id = token), '{}'),
         coalesce((select array_agg(array_to_string(g.permissions, ',') order by g.pattern)
                   from auth.token_grants g where g.token_id = token), '{}')
  from auth.tokens t where t.token_id = token
$$;

revoke all on all functions in schema auth from public;
grant usage on schema auth to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant select on auth.access_head to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant execute on function auth.token_access
  to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant execute on function auth.bump to teamlore_auth;
grant update on auth.access_head to teamlore_auth;
grant select, insert on auth.tokens, auth.token_grants, auth.signing_keys to teamlore_auth;
grant update (revoked_at) on auth.tokens to teamlore_auth;
