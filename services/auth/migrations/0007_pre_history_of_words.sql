-- What was taken from a grant or a role and not from the whole of it, how old an issuer's word is, and the end of old rows.

-- Permissions that an allow once held and holds no more: a CLIENT bank answers ACCESS_REVOKED to who asks for one.
alter table auth.access_grants add lost text[] not null default '{}';
-- Whoever was an owner or admin of the Team before.
alter table auth.memberships add had_full boolean not null default false;
-- When the identity provider last named the group; `call` and `file` rows do not age.
alter table auth.group_members add said_at timestamptz not null default clock_timestamp();
create index group_members_said on auth.group_members (said_at) where source = 'issuer';
create index tokens_ended on auth.tokens (least(revoked_at, expires_at));

create or replace function auth.caller_access(token text, who text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  t auth.tokens;
  origin auth.tokens;
  subject_of text := who;
  names text[];
  given text[];
  left_names text[];
begin
  if token is not null then
    select * into t from auth.tokens where token_id = token;
    if not found then
      return null;
    end if;
    subject_of := t.principal;
    select * into origin from auth.tokens
    where token_id = t.started_from and not personal and revoked_at is null
      and (expires_at is null or expires_at > clock_timestamp());
  end if;
  select coalesce(array_agg(distinct group_name), '{}') into given from auth.group_members where principal = subject_of;
  select coalesce(array_agg(distinct g order by g), '{}') into names from (
    select unnest(given) union select unnest(t.groups) union select unnest(origin.groups)) s(g);
  select coalesce(array_agg(group_name order by group_name), '{}') into left_names from auth.former_members
  where principal = subject_of and group_name <> all (names);
  return jsonb_build_object(
    'principal', subject_of,
    'groups', names,
    -- Those that come with the token alone. They give no comply: that comes by who the principal is.
    'token_groups', array(select g from unnest(names) g where g <> all (given) order by g),
    'former_groups', left_names,
    'suspended', exists (select 1 from auth.suspensions where principal = subject_of),
    'default_access', (select default_access from auth.access_head),
    'token', case when token is not null then jsonb_build_object(
      'kind', t.kind, 'personal', t.personal, 'session', t.session, 'revoked', t.revoked_at is not null,
      'expires_at', extract(epoch from t.expires_at),
      'grants', coalesce((select jsonb_agg(jsonb_build_array(pattern, permissions) order by pattern)
                          from auth.token_grants where token_id = token), '[]'),
      'origin', coalesce((select jsonb_agg(jsonb_build_array(pattern, permissions) order by pattern)
                          from auth.token_grants where token_id = origin.token_id), '[]')) end,
    -- With all allows that were taken away, whole or in part: which of them reach a CLIENT bank is for the matching of
    -- patterns to say.
    'rules', coalesce((
      select jsonb_agg(jsonb_build_array(subject, pattern, effect,
                         case when effect = 'allow' and subject = any (names) and not subject = any (given)
                           then array_remove(words, 'comply') else words end, gone)
                       order by subject, pattern, effect, gone)
      from auth.access_grants,
           lateral (values (permissions, revoked_at is not null), (lost, true)) parts(words, gone)
      where (subject = subject_of or subject = any (names) or subject ~ '[*?[]'
             or (subject = any (left_names) and effect = 'allow'))
        and cardinality(words) > 0 and (not gone or effect = 'allow')), '[]'),
    'memberships', coalesce((
      select jsonb_agg(jsonb_build_array(m.team_id, m.role, m.status, e.archived_at is not null) order by m.team_id)
      from auth.memberships m join auth.teams e using (team_id) where m.principal = subject_of), '[]'),
    'stepped_down', array(
      select team_id from auth.memberships
      where principal = subject_of and had_full and role = 'member' order by team_id));
end $$;

revoke all on all functions in schema auth from public;
grant delete on auth.tokens, auth.token_grants to teamlore_auth;
