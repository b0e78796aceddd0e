-- A memory names its author itself and has an index by author, so that a second row a memory, with two indexes, said nothing
-- that was not there: it was a quarter of what Postgres did for a push. The trail reads both; `subject_links` keeps what the
-- rows of objects do not say by themselves. A push that is under way while this runs may still leave such a row: the trail
-- passes over it, and an erasure deletes it as before.
truncate memory.subject_links;

create view memory.subject_trail as
  select author as principal, 'memory' as kind, bank, id as object_id, 'author' as role from memory.memories
  union all
  select principal, kind, bank, object_id, role from memory.subject_links where kind <> 'memory';

create or replace function memory.put(b text, who text, ids text[], fact_types text[], occurred timestamptz[],
                                      pages bigint[], slots int[], sealeds bytea[], tags bytea[])
returns table (stored_id text, stored_seq bigint) language plpgsql security definer set search_path = '' as $$
declare
  won text[];
  n int;
  base bigint;
begin
  with claimed as (
    insert into memory.memory_ids (id, bank) select x, b from unnest(ids) x order by x on conflict do nothing returning id)
  select coalesce(array_agg(id order by id), '{}') into won from claimed;
  n := cardinality(won);
  if n = 0 then
    return;
  end if;
  select head into base from memory.heads where bank = b for update;
  update memory.heads
  set head = base + n, live = live + n,
      digest = memory.digest_sum(digest, (select sum(memory.digest_step(t.id, base + t.o))
                                          from unnest(won) with ordinality t(id, o)))
  where bank = b;
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, base + t.o, t.id, 'upsert' from unnest(won) with ordinality t(id, o);
  return query
  insert into memory.memories (bank, id, author, fact_type, occurred_at, key_page, key_slot, sealed, retain_tag, last_seq)
  select b, s.id, who, s.fact_type, s.occurred_at, s.key_page, s.key_slot, s.sealed, s.tag, base + t.o
  from unnest(ids, fact_types, occurred, pages, slots, sealeds, tags)
         s(id, fact_type, occurred_at, key_page, key_slot, sealed, tag)
    join unnest(won) with ordinality t(id, o) on t.id = s.id
  returning id, last_seq;
end $$;

-- The older form, for what runs during an upgrade.
create or replace function memory.put(b text, who text, ids text[], fact_types text[], occurred timestamptz[],
                                      pages bigint[], slots int[], sealeds bytea[])
returns table (stored_id text, stored_seq bigint) language sql security definer set search_path = '' as $$
  with src as (
    select * from unnest(ids, fact_types, occurred, pages, slots, sealeds)
      t(id, fact_type, occurred_at, key_page, key_slot, sealed) order by id),
  claimed as (
    insert into memory.memory_ids (id, bank) select id, b from src order by id on conflict do nothing returning id),
  won as (select count(*) as n from claimed),
  h as (
    update memory.heads set head = head + won.n, live = live + won.n from won
    where bank = b and won.n > 0 returning head),
  r as (
    select s.*, h.head - count(*) over () + row_number() over (order by s.id) as seq
    from src s join claimed using (id) cross join h),
  c as (insert into memory.changes (bank, seq, memory_id, kind) select b, seq, id, 'upsert' from r),
  m as (
    insert into memory.memories (bank, id, author, fact_type, occurred_at, key_page, key_slot, sealed, last_seq)
    select b, id, who, fact_type, occurred_at, key_page, key_slot, sealed, seq from r returning id, last_seq)
  select id, last_seq from m
$$;
