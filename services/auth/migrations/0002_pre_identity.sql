-- Groups, grants and denies, Teams, suspension, sessions; who may do what is read by one function.
alter table auth.access_head
  add deployment uuid not null default gen_random_uuid(),
  add default_access text not null default 'deny' check (default_access in ('deny', 'owner_only', 'open'));

alter table auth.tokens
  add groups text[] not null default '{}',
  add note text not null default '',
  -- A personal key never does more than its principal's own grants.
  add personal boolean not null default false,
  add session boolean not null default false,
  add last_used_at timestamptz,
  -- The admin-minted person token that a session or a personal key comes from: what that token adds, these have too.
  add started_from text references auth.tokens,
  add constraint session_of_a_person check (not session or (kind = 'person' and personal and expires_at is not null));
create index tokens_principal on auth.tokens (principal, created_at desc, token_id desc);
create index tokens_newest on auth.tokens (created_at desc, token_id desc);

create index tokens_started_from on auth.tokens (started_from) where started_from is not null;

create table auth.suspensions (
  principal text primary key,
  suspended_by text not null,
  suspended_at timestamptz not null default clock_timestamp()
);

-- `issuer` rows are what the identity provider said at the principal's last sign-in.
create table auth.group_members (
  group_name text not null check (group_name like 'team:_%'),
  principal text not null,
  source text not null check (source in ('call', 'file', 'issuer')),
  primary key (group_name, principal, source)
);
create index group_members_principal on auth.group_members (principal);

-- A row that was taken away stays: a CLIENT bank answers ACCESS_REVOKED to those who once had it.
create table auth.access_grants (
  subject text not null,
  pattern text not null,
  effect text not null check (effect in ('allow', 'deny')),
  permissions text[] not null check (cardinality(permissions) > 0),
  source text not null check (source in ('call', 'file')),
  created_by text not null,
  created_at timestamptz not null default clock_timestamp(),
  revoked_at timestamptz,
  primary key (subject, pattern, effect)
);

-- Who administers the whole deployment is asked with each change that could leave it without an admin.
create index access_grants_all on auth.access_grants (subject) where pattern = '*' and effect = 'allow';
create index token_grants_all on auth.token_grants (token_id) where pattern = '*';

create table auth.teams (
  team_id text primary key check (team_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'),
  name text not null,
  archived_at timestamptz
);

create table auth.memberships (
  team_id text not null references auth.teams,
  principal text not null check (principal like 'user:_%'),
  role text not null check (role in ('owner', 'admin', 'member')),
  status text not null check (status in ('active', 'suspended', 'removed')),
  primary key (team_id, principal)
);
create index memberships_principal on auth.memberships (principal);

create table auth.clients (
  team_id text not null references auth.teams,
  client_id text not null check (client_id ~ '^[A-Za-z0-9._-]{1,64}$'),
  archived_at timestamptz,
  primary key (team_id, client_id)
);

-- A key signs from `active_from` on; it is published before that, and until its last token is gone.
alter table auth.signing_keys add active_from timestamptz not null default clock_timestamp(),
  add retired_at timestamptz;

-- All that decides what a principal may do: its own token where one is named, groups, grants, denies, Teams.
create function auth.caller_access(token text, who text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
  t auth.tokens;
  origin auth.tokens;
  subject_of text := who;
  names text[];
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
  return jsonb_build_object(
    'principal', subject_of,
    'groups', names,
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
      where (subject = subject_of or subject = any (names) or subject ~ '[*?[]')
        and (revoked_at is null or (pattern like 'client:%' and effect = 'allow'))), '[]'),
    'memberships', coalesce((
      select jsonb_agg(jsonb_build_array(m.team_id, m.role, m.status, e.archived_at is not null) order by m.team_id)
      from auth.memberships m join auth.teams e using (team_id) where m.principal = subject_of), '[]'));
end $$;

-- What of a bank decides access: its owner and, in the CLIENT layer, whether Team and client are there and in use.
create function auth.bank_access(b text) returns jsonb
language sql stable security definer set search_path = '' as $$
  select jsonb_build_object(
    'owner', (select owner from memory.banks where bank = b),
    'client', (
      select case when c.archived_at is null and e.archived_at is null then 'active' else 'archived' end
      from auth.clients c join auth.teams e using (team_id)
      where b like 'client:%' and c.team_id = split_part(b, ':', 2) and c.client_id = substr(b, 45)))
$$;

revoke all on all functions in schema auth from public;
grant execute on function auth.caller_access, auth.bank_access
  to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant execute on function auth.bump to teamlore_auth;
grant select, insert, update, delete on auth.group_members, auth.suspensions to teamlore_auth;
grant select, insert, update on auth.access_grants, auth.teams, auth.memberships, auth.clients to teamlore_auth;
grant update (revoked_at, expires_at, last_used_at) on auth.tokens to teamlore_auth;
grant update (retired_at, active_from) on auth.signing_keys to teamlore_auth;
