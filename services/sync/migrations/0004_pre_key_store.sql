-- Which key store goes with this database: written once, compared by every process that opens one.
create table memory.key_store (
  single boolean primary key default true check (single),
  id text not null check (id ~ '^[0-9a-f]{32}$'),
  bound_at timestamptz not null default clock_timestamp()
);

create function memory.bind_key_store(store text) returns void
language sql security definer set search_path = '' as $$ insert into memory.key_store (id) values (store) $$;

-- Whether a memory or an open destruction needs any of these pages, or any page at all.
create function memory.needs_key_pages(pages bigint[]) returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (select 1 from memory.key_pages k where k.key_page = any (pages) and k.used)
$$;
create function memory.needs_key_pages() returns boolean language sql stable security definer set search_path = '' as $$
  select exists (select 1 from memory.key_pages k where k.used)
$$;

-- Only such a database may have a key store made for it. Databases older than this table tell by what was sealed or
-- signed. Auth's table is made after this function and before anyone calls it.
create function memory.never_had_a_key_store() returns boolean
language plpgsql stable security definer set search_path = '' as $$
begin
  return not (exists (select 1 from memory.key_store) or memory.needs_key_pages()
              or exists (select 1 from memory.erasures where statement is not null)
              or exists (select 1 from auth.signing_keys));
end $$;

-- Keys that were never found. An operator has given them up; the receipt says so.
alter table memory.key_destructions add column written_off boolean not null default false;

-- Ends the wait for keys that cannot be found; answers how many were open.
create function memory.write_off_keys(b text, ids text[]) returns int
language plpgsql security definer set search_path = '' as $$
declare
  n int;
begin
  perform 1 from memory.heads where bank = b for key share;
  perform memory.refuse_when_held(b);
  update memory.key_destructions set done_at = clock_timestamp(), written_off = true
  where bank = b and id = any (ids) and done_at is null;
  get diagnostics n = row_count;
  return n;
end $$;

-- An id that names no layer is refused before a row is tried: a refused row stands in the server's log.
create or replace function memory.open_bank(b text) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  made boolean;
begin
  if b !~ '^[A-Za-z0-9._:@-]{1,255}$' or split_part(b, ':', 2) = ''
     or split_part(b, ':', 1) not in ('project', 'space', 'system', 'client', 'private')
     or (b like 'client:%' and split_part(b, ':', 3) = '') then
    raise exception 'a bank id is a layer, a colon and a name' using errcode = '23514', constraint = 'scope_of_layer';
  end if;
  insert into memory.banks (bank, layer, team_id, client_id, user_id)
  select b,
         case split_part(b, ':', 1) when 'project' then 'team' when 'space' then 'team' else split_part(b, ':', 1) end,
         case when b like 'client:%' then split_part(b, ':', 2) end,
         case when b like 'client:%' then nullif(split_part(b, ':', 3), '') end,
         case when b like 'private:%' then nullif(substr(b, 9), '') end
  on conflict do nothing;
  made := found;
  insert into memory.heads (bank) values (b) on conflict do nothing;
  return made;
end $$;

revoke all on function memory.bind_key_store, memory.needs_key_pages(bigint[]), memory.needs_key_pages(),
  memory.never_had_a_key_store, memory.write_off_keys from public;
grant select on memory.key_store
  to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant usage on schema memory to teamlore_auth;
grant execute on function memory.bind_key_store, memory.needs_key_pages(bigint[]), memory.needs_key_pages(),
  memory.never_had_a_key_store to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant execute on function memory.write_off_keys to teamlore_compliance;
grant select on memory.live_memories to teamlore_compliance;
