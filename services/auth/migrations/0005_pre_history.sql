-- Who once was in a group, so that a CLIENT bank answers ACCESS_REVOKED to those who had it by that.
create table auth.former_members (
  group_name text not null,
  principal text not null,
  primary key (principal, group_name)
);

-- Declared here, so that no statement which takes a member out, of an older version too, can forget it.
create function auth.keep_former_member() returns trigger language plpgsql set search_path = '' as $$
begin
  insert into auth.former_members (group_name, principal) values (old.group_name, old.principal) on conflict do nothing;
  return null;
end $$;
create trigger keep_former_member after delete on auth.group_members
  for each row execute function auth.keep_former_member();

-- As before, with the groups that one has left and what they are allowed, and with all allows that were taken away:
-- which of them reach a CLIENT bank is for the matching of patterns to say.
create or replace function auth.caller_access(token text, who text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  t auth.tokens;
  origin auth.tokens;
  subject_of text := who;
  names text[];
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
  select coalesce(array_agg(distinct g order by g), '{}') into names from (
    select group_name from auth.group_members where principal = subject_of
    union select unnest(t.groups) union select unnest(origin.groups)) s(g);
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
      select jsonb_agg(jsonb_build_array(subject, pattern, effect, permissions, revoked_at is not null)
                       order by subject, pattern, effect)
      from auth.access_grants
      where (subject = subject_of or subject = any (names) or subject ~ '[*?[]'
             or (subject = any (left_names) and effect = 'allow'))
        and (revoked_at is null or effect = 'allow')), '[]'),
    'memberships', coalesce((
      select jsonb_agg(jsonb_build_array(m.team_id, m.role, m.status, e.archived_at is not null) order by m.team_id)
      from auth.memberships m join auth.teams e using (team_id) where m.principal = subject_of), '[]'));
end $$;

revoke all on all functions in schema auth from public;
grant select, insert on auth.former_members to teamlore_auth;
