-- name: token_by_hash
-- The token whose secret has this hash.
select token_id, principal, kind, expires_at, revoked_at from auth.tokens where secret_hash = $1

-- name: insert_token
-- Keeps a new token, by the hash of its secret.
insert into auth.tokens (token_id, secret_hash, principal, kind, created_by, expires_at) values ($1, $2, $3, $4, $5, $6)

-- name: insert_grants
-- Keeps what a token may do; permissions come as comma-separated words.
insert into auth.token_grants (token_id, pattern, permissions)
select $1, p, string_to_array(w, ',') from unnest($2::text[], $3::text[]) t(p, w)

-- name: revoke_token
-- Marks a token as revoked; no row when it was or is unknown.
update auth.tokens set revoked_at = clock_timestamp() where token_id = $1 and revoked_at is null returning token_id

-- name: bump_access
-- Tells every service that the access state has changed.
select auth.bump()

-- name: any_admin
-- Whether a token with admin on everything exists.
select exists (select 1 from auth.token_grants where pattern = '*' and 'admin' = any (permissions))

-- name: signing_keys
-- The unretired signing keys in the order in which they begin to sign, and the time; one row of the time where there is none.
select t.now, k.kid, k.public_key, k.sealed_private_key, k.active_from
from (select clock_timestamp() as now) t left join auth.signing_keys k on k.retired_at is null
order by k.active_from, k.kid

-- name: insert_signing_key
-- Keeps a signing key, sealed.
insert into auth.signing_keys (kid, public_key, sealed_private_key, active_from) values ($1, $2, $3, $4)

-- name: retire_signing_keys
-- Retires keys and wipes their private halves.
update auth.signing_keys set retired_at = clock_timestamp(), sealed_private_key = null
where kid = any ($1) and retired_at is null returning kid

-- name: lock_start
-- One auth process at a time makes or retires keys, or makes the first admin.
select pg_advisory_xact_lock(7214532)

-- name: person_token
-- A token that may start a session, by the hash of its secret.
select token_id, principal, kind, personal, session, groups, expires_at, revoked_at is not null as revoked,
       coalesce(expires_at <= clock_timestamp(), false) as expired
from auth.tokens where secret_hash = $1

-- name: hold_live_token
-- Holds off a revoke until the session that a token starts is there to be ended with it; no row for a dead token.
select token_id from auth.tokens
where token_id = $1 and revoked_at is null and (expires_at is null or expires_at > clock_timestamp()) for share

-- name: is_suspended
-- Whether a principal is suspended.
select exists (select 1 from auth.suspensions where principal = $1)

-- name: use_id_token
-- Marks an ID token as used; no row when it was.
insert into auth.used_id_tokens (token_hash, ends_at) values ($1, to_timestamp($2)) on conflict do nothing returning 1

-- name: sweep_id_tokens
-- Forgets used ID tokens that ended an hour ago, a few at each sign-in.
delete from auth.used_id_tokens where token_hash in (
  select token_hash from auth.used_id_tokens where ends_at < clock_timestamp() - interval '1 hour'
  limit 100 for update skip locked)

-- name: insert_session
-- Keeps a person session that ends after so many seconds, or with the credential it was started from.
insert into auth.tokens
  (token_id, secret_hash, principal, kind, created_by, personal, session, groups, started_from, expires_at)
values ($1, $2, $3, 'person', $3, true, true, $4, $5,
        least(clock_timestamp() + make_interval(secs => $6), to_timestamp($7)))
returning expires_at

-- name: copy_ceiling
-- Narrows a session as the personal token it was started from.
insert into auth.token_grants (token_id, pattern, permissions)
select $1, pattern, permissions from auth.token_grants where token_id = $2

-- name: lock_sign_in
-- One sign-in of a principal at a time replaces its groups.
select pg_advisory_xact_lock(hashtextextended('auth.sign_in ' || $1, 0))

-- name: drop_issuer_groups
-- Takes a principal out of the groups that its issuer no longer names.
delete from auth.group_members where principal = $1 and source = 'issuer' and group_name <> all ($2) returning group_name

-- name: add_issuer_groups
-- Puts a principal into the groups that its issuer names; gives the new ones.
insert into auth.group_members (group_name, principal, source) select g, $1, 'issuer' from unnest($2::text[]) g
on conflict do nothing returning group_name

-- name: touch_tokens
-- Says that tokens were just used; a row that another transaction holds, or that says so already, is passed by.
update auth.tokens set last_used_at = clock_timestamp() where token_id in (
  select token_id from auth.tokens
  where token_id = any ($1) and (last_used_at is null or last_used_at < clock_timestamp() - interval '1 minute')
  for no key update skip locked)
