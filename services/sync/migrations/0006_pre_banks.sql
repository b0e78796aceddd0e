-- Banks get a name, an owner, an archive and a policy; auth writes them through functions.
alter table memory.banks
  add name text not null default '',
  add owner text,
  add archived_at timestamptz,
  -- Null: what the deployment's setting says.
  add barrier text check (barrier in ('redact', 'reject', 'off')),
  add team_memory boolean not null default true,
  add min_lane text not null default 'synced' check (min_lane in ('synced', 'capture', 'entry')),
  add publish_requires_review boolean not null default false,
  add constraint ids_of_layer check (
    (team_id is null or team_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$') and
    (client_id is null or client_id ~ '^[A-Za-z0-9._-]{1,64}$') and
    (layer <> 'private' or user_id ~ '^(user|agent|service):[A-Za-z0-9._@-]{1,100}$'));

-- What a leaver holds is asked by principal.
create index banks_owner on memory.banks (owner) where owner is not null;
create index mirrors_principal on memory.mirrors (principal);

-- The id of a PRIVATE bank is its owner's: who it belongs to is no column that could say otherwise.
create or replace function memory.open_bank(b text) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  made boolean;
begin
  if b !~ '^[A-Za-z0-9._:@-]{1,255}$' or split_part(b, ':', 2) = ''
     -- `team:` begins the name of a group, never of a bank.
     or split_part(b, ':', 1) not in ('project', 'space', 'system', 'client', 'private') then
    raise exception 'a bank id is a layer, a colon and a name' using errcode = '23514', constraint = 'scope_of_layer';
  end if;
  if b like 'client:%' and
     b !~ '^client:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:[A-Za-z0-9._-]{1,64}$'
     or b like 'private:%' and b !~ '^private:(user|agent|service):[A-Za-z0-9._@-]{1,100}$' then
    -- Refused before the row is tried, so that no log quotes it.
    raise exception 'the ids in a bank id break their rules' using errcode = '23514', constraint = 'ids_of_layer';
  end if;
  insert into memory.banks (bank, layer, team_id, client_id, user_id)
  select b,
         case split_part(b, ':', 1) when 'project' then 'team' when 'space' then 'team' else split_part(b, ':', 1) end,
         case when b like 'client:%' then split_part(b, ':', 2) end,
         case when b like 'client:%' then split_part(b, ':', 3) end,
         case when b like 'private:%' then substr(b, 9) end
  on conflict do nothing;
  made := found;
  insert into memory.heads (bank) values (b) on conflict do nothing;
  return made;
end $$;

-- The first push makes the bank, and who pushed owns it.
create function memory.open_bank(b text, who text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  if memory.open_bank(b) then
    update memory.banks set owner = who where bank = b and layer <> 'private';
    return true;
  end if;
  return false;
end $$;

-- Null leaves what stands. Answers whether the bank was made and whether anything changed.
create function memory.put_bank(b text, called text, owned_by text, who text, out created boolean, out changed boolean)
language plpgsql security definer set search_path = '' as $$
begin
  created := memory.open_bank(b, coalesce(owned_by, who));
  update memory.banks set name = coalesce(called, name),
    owner = case when layer <> 'private' then coalesce(owned_by, owner) end
  where bank = b and (name, owner) is distinct from
    (coalesce(called, name), case when layer <> 'private' then coalesce(owned_by, owner) end);
  changed := found or created;
end $$;

create function memory.archive_bank(b text, archive boolean) returns boolean
language sql security definer set search_path = '' as $$
  update memory.banks set archived_at = case when archive then clock_timestamp() end
  where bank = b and (archived_at is not null) <> archive returning true
$$;

-- Null leaves what stands; the bank must be there.
create function memory.put_policy(b text, new_barrier text, duplicates text, threshold real, class text, entries boolean,
                                  lane text, review boolean) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update memory.banks set barrier = coalesce(new_barrier, barrier),
    near_duplicates = coalesce(duplicates, near_duplicates),
    near_duplicate_threshold = coalesce(threshold, near_duplicate_threshold),
    classification = coalesce(class, classification), team_memory = coalesce(entries, team_memory),
    min_lane = coalesce(lane, min_lane), publish_requires_review = coalesce(review, publish_requires_review)
  where bank = b and
    (barrier, near_duplicates, near_duplicate_threshold, classification, team_memory, min_lane,
     publish_requires_review) is distinct from
    (coalesce(new_barrier, barrier), coalesce(duplicates, near_duplicates),
     coalesce(threshold, near_duplicate_threshold), coalesce(class, classification), coalesce(entries, team_memory),
     coalesce(lane, min_lane), coalesce(review, publish_requires_review));
  return found;
end $$;

-- Records stored a day by each principal, counted in the transaction that stores them; only where a quota is set.
create table memory.quota_use (
  principal text not null,
  day date not null,
  records bigint not null,
  primary key (principal, day)
);
create function memory.count_records(who text, n int) returns void
language sql security definer set search_path = '' as $$
  insert into memory.quota_use (principal, day, records) values (who, (now() at time zone 'utc')::date, n)
  on conflict (principal, day) do update set records = memory.quota_use.records + excluded.records
$$;

create view memory.bank_policies as
  select bank, layer, name, owner, archived_at is not null as archived, barrier, near_duplicates,
         near_duplicate_threshold, classification, team_memory, min_lane, publish_requires_review, created_at
  from memory.banks;
create view memory.devices_of as select principal, device_id, bank from memory.mirrors;

revoke all on all functions in schema memory from public;
grant execute on function memory.open_bank(text, text), memory.count_records to teamlore_sync;
grant select on memory.bank_policies, memory.quota_use to teamlore_sync;
grant usage on schema memory to teamlore_auth;
grant execute on function memory.put_bank, memory.archive_bank, memory.put_policy to teamlore_auth;
grant select on memory.bank_policies, memory.devices_of to teamlore_auth;
grant select on memory.bank_policies to teamlore_index;
