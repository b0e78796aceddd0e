-- What a token's own groups give, and what follows a token to its successor.

-- The token that took the place of this one: what is started while both go on comes from it.
alter table auth.tokens add successor text references auth.tokens;
create index tokens_successor on auth.tokens (successor) where successor is not null;
create index tokens_groups on auth.tokens (token_id) where groups <> '{}';

-- A token's own groups give no comply: that comes by who the principal is, not by a token that an admin made.
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
    'rules', coalesce((
      select jsonb_agg(jsonb_build_array(subject, pattern, effect,
                         case when effect = 'allow' and subject = any (names) and not subject = any (given)
                           then array_remove(permissions, 'comply') else permissions end,
                         revoked_at is not null)
                       order by subject, pattern, effect)
      from auth.access_grants
      where (subject = subject_of or subject = any (names) or subject ~ '[*?[]'
             or (subject = any (left_names) and effect = 'allow'))
        and (revoked_at is null or effect = 'allow')), '[]'),
    'memberships', coalesce((
      select jsonb_agg(jsonb_build_array(m.team_id, m.role, m.status, e.archived_at is not null) order by m.team_id)
      from auth.memberships m join auth.teams e using (team_id) where m.principal = subject_of), '[]'));
end $$;

grant update (groups, started_from, successor) on auth.tokens to teamlore_auth;
