-- The digest's term as one expression, which the planner puts in place of the call: it is computed for each stored record
-- while others wait for the head. Signed: terms are summed modulo 2^64, where -1 is the same as 2^64 - 1. Stable only because
-- `convert_to` is: one that claimed more would not be put in place.
create function memory.digest_step(id text, seq bigint) returns bigint language sql stable parallel safe as $$
  select ('x' || left(encode(sha256(convert_to(id, 'UTF8') || '\x00'::bytea || convert_to(seq::text, 'UTF8')), 'hex'), 16))
         ::bit(64)::bigint
$$;

-- As before, with the digest from `digest_step`.
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
  insert into memory.subject_links (principal, kind, bank, object_id, role)
  select who, 'memory', b, x, 'author' from unnest(won) x on conflict do nothing;
  return query
  insert into memory.memories (bank, id, author, fact_type, occurred_at, key_page, key_slot, sealed, retain_tag, last_seq)
  select b, s.id, who, s.fact_type, s.occurred_at, s.key_page, s.key_slot, s.sealed, s.tag, base + t.o
  from unnest(ids, fact_types, occurred, pages, slots, sealeds, tags)
         s(id, fact_type, occurred_at, key_page, key_slot, sealed, tag)
    join unnest(won) with ordinality t(id, o) on t.id = s.id
  returning id, last_seq;
end $$;

revoke all on function memory.digest_step from public;
