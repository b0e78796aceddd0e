-- name: token_by_hash
-- The token whose secret has this hash.
select token_id, principal, kind, expires_at, revoked_at from auth.tokens where secret_hash = $1

-- name: insert_token
-- Keeps a new token, by the hash of its secret, and gives its end; made with the token $11 it comes from what that comes
-- from, or from that, and ends no later.
insert into auth.tokens (token_id, secret_hash, principal, kind, created_by, expires_at, groups, note, personal, session,
                         started_from)
select $1, $2, $3, $4, $5, least($6, (select expires_at from auth.tokens where token_id = o.id)), $7, $8, $9,
       $10, o.id
from (select (select coalesce(started_from, case when not personal then token_id end) from auth.tokens
              where token_id = $11) as id) o
returning expires_at

-- name: insert_grants
-- Keeps what a token may do; permissions come as comma-separated words.
insert into auth.token_grants (token_id, pattern, permissions)
select $1, p, string_to_array(w, ',') from unnest($2::text[], $3::text[]) t(p, w)

-- name: revoke_tokens
-- Marks tokens as revoked, and tells which were not.
update auth.tokens set revoked_at = clock_timestamp() where token_id = any ($1::text[]) and revoked_at is null
returning token_id

-- name: is_personal_key
-- Whether a token is a key that a person made for itself.
select coalesce((select personal and not session from auth.tokens where token_id = $1), false)

-- name: succeed
-- The token $2 comes from what $1 comes from, and ends with that where $1 had to.
update auth.tokens t set started_from = o.started_from,
  expires_at = least(t.expires_at,
    (select f.expires_at from auth.tokens f where f.token_id = o.started_from))
from auth.tokens o where o.token_id = $1 and t.token_id = $2

-- name: follow
-- What comes from the token $1, and will while that goes on, comes from its successor $2.
update auth.tokens set started_from = case when started_from = $1 then $2 else started_from end,
  successor = case when token_id = $1 or successor = $1 then $2 else successor end
where started_from = $1 or token_id = $1 or successor = $1

-- name: end_token
-- Lets a token go on for so many seconds, no longer than it would have.
update auth.tokens set expires_at = least(expires_at, clock_timestamp() + make_interval(secs => $2)) where token_id = $1

-- name: tokens_by_id
-- Tokens by their public ids, the newest first.
select t.*, array(select g.pattern from auth.token_grants g where g.token_id = t.token_id order by g.pattern) as patterns,
       array(select array_to_string(g.permissions, ',') from auth.token_grants g where g.token_id = t.token_id
             order by g.pattern) as words
from auth.tokens t where t.token_id = any ($1::text[]) order by t.created_at desc, t.token_id desc

-- name: token_ids
-- A page of the ids of all tokens, the newest first, after the one named.
select token_id from auth.tokens
where (created_at, token_id) < (coalesce((select created_at from auth.tokens where token_id = $1), 'infinity'), $1::text)
order by created_at desc, token_id desc limit $2

-- name: token_ids_of
-- A page of the ids of a principal's tokens, the newest first, after the one named.
select token_id from auth.tokens
where principal = $3
  and (created_at, token_id) < (coalesce((select created_at from auth.tokens where token_id = $1), 'infinity'), $1::text)
order by created_at desc, token_id desc limit $2

-- name: working_token_ids_of
-- The ids of a principal's tokens that can be exchanged.
select token_id from auth.tokens
where principal = $1 and revoked_at is null and (expires_at is null or expires_at > now())

-- name: made_token_ids
-- The ids of others' tokens that a principal made or rotated, or that took the place of one of these, and that can be
-- exchanged; the newest first.
select t.token_id from auth.tokens t
where t.principal <> $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > now())
  and (t.created_by = $1
       or exists (select 1 from auth.tokens o where o.successor = t.token_id and o.created_by = $1 and o.principal <> $1))
order by t.created_at desc, t.token_id desc

-- name: lock_access
-- One change of access at a time; gives the deployment's settings.
select default_access, clock_timestamp() as now from auth.access_head for update

-- name: caller_access
-- All that decides what a token may do, or a principal without one.
select auth.caller_access($1, $2) as access

-- name: likely_admins
-- Working tokens that may administer the deployment, those that last longest first; where $1 those without an end alone.
with tops as materialized (
    select subject from auth.access_grants
    where pattern = '*' and effect = 'allow' and revoked_at is null and 'admin' = any (permissions)),
  named as materialized (
    select subject as principal from tops
    union select m.principal from auth.group_members m join tops on m.group_name = tops.subject)
select t.token_id from auth.tokens t
where t.revoked_at is null and (t.expires_at is null or (not $1 and t.expires_at > clock_timestamp()))
  and t.principal not in (select principal from auth.suspensions)
  and (t.token_id in (select token_id from auth.token_grants where pattern = '*' and 'admin' = any (permissions))
       or t.principal in (select principal from named)
       or t.groups && (select array_agg(subject) from tops)
       or (select bool_or(subject ~ '[*?[]') from tops))
order by t.expires_at desc nulls first limit 200

-- name: signed_in
-- Persons whom the identity provider named within a month: they can come back without a token.
select distinct principal from auth.tokens
where session and started_from is null and created_at > now() - interval '30 days'
  and principal not in (select principal from auth.suspensions)

-- name: suspend
-- Shuts a principal out; no row where it was.
insert into auth.suspensions (principal, suspended_by) values ($1, $2) on conflict do nothing returning principal

-- name: resume
-- Lets a principal back in; no row where it was not shut out.
delete from auth.suspensions where principal = $1 returning principal

-- name: had_tokens
-- Whether a principal has or had a token.
select exists (select 1 from auth.tokens where principal = $1)

-- name: suspended
-- Whether a principal is shut out.
select exists (select 1 from auth.suspensions where principal = $1)

-- name: rules_of
-- Grants and denies that name a principal, and those of patterns, which may hit it.
select subject, pattern, effect, permissions, source from auth.access_grants
where (subject = $1 or subject ~ '[*?[]') and revoked_at is null order by subject <> $1, subject, pattern, effect

-- name: groups_of
-- The groups that a principal is a member of, or one of its working tokens.
select group_name from auth.group_members where principal = $1
union select unnest(groups) from auth.tokens
where principal = $1 and not session and revoked_at is null and (expires_at is null or expires_at > now())
order by group_name

-- name: memberships_of
-- A principal's parts in Teams that have not ended.
select team_id, principal, role, status from auth.memberships where principal = $1 and status <> 'removed' order by team_id

-- name: banks_of
-- Banks that a principal owns, its PRIVATE one included.
select bank from memory.bank_policies where owner = $1
union select bank from memory.bank_policies where bank = 'private:' || $1 order by bank

-- name: devices_of
-- Devices that hold copies of banks for a principal.
select distinct device_id from memory.devices_of where principal = $1 order by device_id

-- name: rule
-- One grant or deny that stands.
select subject, pattern, effect, permissions, source from auth.access_grants
where subject = $1 and pattern = $2 and effect = $3 and revoked_at is null

-- name: all_rules
-- All grants and denies that stand.
select subject, pattern, effect, permissions, source from auth.access_grants where revoked_at is null

-- name: group_allows
-- What groups are allowed.
select pattern, permissions from auth.access_grants
where subject = any ($1::text[]) and effect = 'allow' and revoked_at is null

-- name: rules_page
-- A page of the grants and denies whose pattern is this very one, or has this start.
select subject, pattern, effect, permissions, source from auth.access_grants
where revoked_at is null and ($1::text is null or pattern = $1) and starts_with(pattern, $2)
  and (subject, pattern, effect) > ($3, $4, $5)
order by subject, pattern, effect limit $6

-- name: rules_page_of
-- The same for one subject.
select subject, pattern, effect, permissions, source from auth.access_grants
where revoked_at is null and ($1::text is null or pattern = $1) and starts_with(pattern, $2)
  and (subject, pattern, effect) > ($3, $4, $5) and subject = $7
order by subject, pattern, effect limit $6

-- name: put_rules
-- Sets grants and denies and keeps what they lose; permissions come as comma-separated words.
insert into auth.access_grants (subject, pattern, effect, permissions, source, created_by)
select s, p, e, string_to_array(w, ','), o, $6
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) t(s, p, e, w, o)
on conflict (subject, pattern, effect) do update set permissions = excluded.permissions, source = excluded.source,
  lost = array(select unnest(auth.access_grants.lost || auth.access_grants.permissions)
               except select unnest(excluded.permissions) order by 1),
  created_by = excluded.created_by, created_at = clock_timestamp(), revoked_at = null

-- name: retire_rules
-- Takes grants and denies away; their rows stay.
update auth.access_grants g set revoked_at = clock_timestamp()
from unnest($1::text[], $2::text[], $3::text[]) t(s, p, e)
where g.subject = s and g.pattern = p and g.effect = e and g.revoked_at is null

-- name: group_rows
-- The members of a group with their source.
select principal, source from auth.group_members where group_name = $1

-- name: managed_group_rows
-- All members that calls or documents put into groups.
select group_name, principal, source from auth.group_members where source <> 'issuer'

-- name: groups_page
-- A page of groups with their members; whose working token names a group is one of them.
with all_of as (
    select group_name, principal from auth.group_members
    union select unnest(groups), principal from auth.tokens
    where groups <> '{}' and revoked_at is null and (expires_at is null or expires_at > now()))
select group_name, array_agg(principal order by principal) as members
from all_of where group_name > $1 group by group_name order by group_name limit $2

-- name: token_group_rows
-- Whose working tokens name a group that they are no members of.
select distinct g as group_name, t.principal from auth.tokens t, unnest(t.groups) g
where t.groups <> '{}' and t.revoked_at is null and (t.expires_at is null or t.expires_at > now())
  and not exists (select 1 from auth.group_members m where m.group_name = g and m.principal = t.principal)

-- name: end_token_groups
-- Takes groups out of the tokens of all who are no members of them.
update auth.tokens t set groups = array(
  select g from unnest(t.groups) g
  where g <> all ($1::text[])
     or exists (select 1 from auth.group_members m where m.group_name = g and m.principal = t.principal))
where t.groups <> '{}' and t.groups && $1::text[]

-- name: clear_groups
-- Empties groups of all but what an identity provider said.
delete from auth.group_members where group_name = any ($1::text[]) and source <> 'issuer'

-- name: insert_members
-- Puts principals into groups.
insert into auth.group_members (group_name, principal, source)
select * from unnest($1::text[], $2::text[], $3::text[])

-- name: teams_by_id
-- Teams by their ids.
select team_id, name, archived_at is not null as archived from auth.teams
where team_id = any ($1::text[]) order by team_id

-- name: team_ids
-- A page of the ids of Teams.
select team_id from auth.teams where team_id > $1 order by team_id limit $2

-- name: members_of
-- The members of Teams, those that left included.
select team_id, principal, role, status from auth.memberships
where team_id = any ($1::text[]) order by team_id, principal

-- name: clients_of
-- The clients of Teams.
select team_id, client_id, archived_at is not null as archived from auth.clients
where team_id = any ($1::text[]) order by team_id, client_id

-- name: put_team
-- Sets a Team's name and whether its use is stopped.
insert into auth.teams (team_id, name, archived_at) values ($1, $2, case when $3 then clock_timestamp() end)
on conflict (team_id) do update set name = excluded.name,
  archived_at = case when $3 then coalesce(auth.teams.archived_at, clock_timestamp()) end

-- name: put_members
-- Sets parts in Teams.
insert into auth.memberships (team_id, principal, role, status)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[])
on conflict (team_id, principal) do update set role = excluded.role, status = excluded.status,
  had_full = auth.memberships.had_full or auth.memberships.role <> 'member'

-- name: put_clients
-- Sets clients of Teams.
insert into auth.clients (team_id, client_id, archived_at)
select t, c, case when a then clock_timestamp() end from unnest($1::text[], $2::text[], $3::boolean[]) s(t, c, a)
on conflict (team_id, client_id) do update set
  archived_at = case when excluded.archived_at is not null
    then coalesce(auth.clients.archived_at, excluded.archived_at) end

-- name: set_default_access
-- Sets what a principal may do where nothing is granted.
update auth.access_head set default_access = $1

-- name: banks_by_id
-- Banks by their ids, and whether the client of a CLIENT bank is there and in use; a row for each id.
select n.bank, b.layer, b.name, b.owner, b.archived, b.barrier, b.near_duplicates, b.near_duplicate_threshold,
       b.classification, b.team_memory, b.min_lane, b.publish_requires_review, b.pii, b.created_at,
       case when c.client_id is not null then
         case when c.archived_at is null and e.archived_at is null then 'active' else 'archived' end end as client
from unnest($1::text[]) n(bank)
left join memory.bank_policies b using (bank)
left join auth.clients c on n.bank like 'client:%' and c.team_id = split_part(n.bank, ':', 2)
  and c.client_id = substr(n.bank, 45)
left join auth.teams e on e.team_id = c.team_id
order by n.bank

-- name: bank_ids
-- A page of the ids of banks; of PRIVATE ones only this principal's.
select bank from memory.bank_policies
where bank > $1 and (layer <> 'private' or bank = 'private:' || $3) order by bank limit $2

-- name: put_bank
-- Makes a bank or sets its name and owner; null leaves what stands.
select created, changed from memory.put_bank($1, $2, $3, $4)

-- name: archive_bank
-- Archives or reopens a bank; null where it stood so.
select memory.archive_bank($1, $2)

-- name: put_policy
-- Sets what is not null of a bank's policy; false where it stood so.
select memory.put_policy($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: bump_access
-- Tells every service that the access state has changed.
select auth.bump()

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
values ($1, $2, $3, 'person', $3, true, true, $4, (select coalesce(successor, token_id) from auth.tokens where token_id = $5),
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

-- name: renew_issuer_groups
-- Notes that the issuer named these groups now.
update auth.group_members set said_at = clock_timestamp() where principal = $1 and source = 'issuer'

-- name: end_issuer_groups
-- Takes principals out of groups that their issuer has not named for so many seconds.
delete from auth.group_members
where source = 'issuer' and said_at < clock_timestamp() - make_interval(secs => $1) returning principal

-- name: sweep_tokens
-- Deletes tokens that ended so many days ago; what was started from one goes before it.
with gone as (
    select token_id from auth.tokens t
    where least(revoked_at, expires_at) < clock_timestamp() - make_interval(days => $1)
      and not exists (select 1 from auth.tokens c where c.started_from = t.token_id)
      and not exists (select 1 from auth.tokens c where c.successor = t.token_id)
    limit $2 for update skip locked),
  grants as (delete from auth.token_grants where token_id in (select token_id from gone))
delete from auth.tokens where token_id in (select token_id from gone) returning token_id

-- name: sweep_decisions
-- Deletes counts of access decisions from so many days ago.
select compliance.sweep_decisions($1, $2)

-- name: sweep_quota_use
-- Deletes counts of stored records from so many days ago.
select memory.sweep_quota_use($1, $2)

-- name: add_issuer_groups
-- Puts a principal into the groups that its issuer names; gives the new ones.
insert into auth.group_members (group_name, principal, source) select g, $1, 'issuer' from unnest($2::text[]) g
on conflict do nothing returning group_name

-- name: touch_tokens
-- Says that tokens were just used; a row that another transaction holds, or that says so already, is passed by.
update auth.tokens set last_used_at = date_trunc('minute', clock_timestamp()) where token_id in (
  select token_id from auth.tokens
  where token_id = any ($1) and (last_used_at is null or last_used_at < clock_timestamp() - interval '1 minute')
  for no key update skip locked)
