-- The destruction of an erasure's keys has one start, under the lock that holds are placed under. Before it a hold stops
-- the erasure; from it on nothing does.
alter table memory.erasures add column keys_begun_at timestamptz;
-- Those of an older version that had destroyed a key had begun.
update memory.erasures e set keys_begun_at = coalesce(e.keys_destroyed_at, clock_timestamp())
where e.state <> 'hidden'
   or exists (select 1 from memory.key_destructions k where k.erasure_id = e.erasure_id and k.done_at is not null);

-- Begins it; true where this call did, null where it had begun. Raises TL001 under a hold. `for key share` waits for a
-- hold that is being placed or lifted, and holds up no writer.
create function memory.begin_key_destruction(operation text) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  b text;
begin
  select bank into b from memory.erasures where erasure_id = operation and state = 'hidden' and keys_begun_at is null;
  if b is null then
    return null;
  end if;
  perform 1 from memory.heads where bank = b for key share;
  perform memory.refuse_when_held(b);
  update memory.erasures set keys_begun_at = clock_timestamp() where erasure_id = operation and keys_begun_at is null;
  return case when found then true end;
end $$;

-- The keys that may be destroyed now.
create view memory.doomed_keys as
  select k.erasure_id, k.bank, k.id, k.key_page, k.key_slot
  from memory.key_destructions k join memory.erasures e using (erasure_id)
  where k.done_at is null and e.keys_begun_at is not null;

revoke all on function memory.begin_key_destruction from public;
grant execute on function memory.begin_key_destruction to teamlore_compliance;
grant select on memory.doomed_keys to teamlore_sync;
