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
-- All signing keys, the oldest first.
select kid, public_key, sealed_private_key from auth.signing_keys order by created_at, kid

-- name: insert_signing_key
-- Keeps a signing key, sealed.
insert into auth.signing_keys (kid, public_key, sealed_private_key) values ($1, $2, $3)

-- name: lock_start
-- One auth process at a time makes the first key or the first admin.
select pg_advisory_xact_lock(7214532)
