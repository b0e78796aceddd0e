-- What was live at an earlier seq: a memory that had come by then and had not been forgotten. When it came is kept by the
-- first update of its row; until then its last step is its first.
alter table memory.memories add column first_seq bigint;

create or replace function memory.check_growth() returns trigger language plpgsql as $$
begin
  if new.bank <> old.bank or new.id <> old.id then
    raise exception 'bank and id of a memory are immutable' using errcode = '23514';
  end if;
  if new.last_seq <= old.last_seq then
    raise exception 'a memory changed without a change' using errcode = '23514';
  end if;
  new.first_seq := coalesce(old.first_seq, old.last_seq);
  return new;
end $$;

-- Those that were updated before this column was there.
alter table memory.memories disable trigger memory_grows;
update memory.memories m set first_seq = c.seq from memory.changes c
where c.bank = m.bank and c.memory_id = m.id and c.kind = 'upsert' and c.seq < m.last_seq;
alter table memory.memories enable trigger memory_grows;

create or replace view memory.present_memories as
  select bank, id, forgotten, last_seq, coalesce(first_seq, last_seq) as first_seq, author, lane, derivation, fact_type,
         status, version, occurred_at, retained_at, key_page, key_slot, sealed, trust, may_be_stale, superseded_by,
         last_verified
  from memory.memories;
