-- Forget reaches what goes together, and binds ids that were never seen.

-- Chunks of one retain are told by an HMAC of author and `_retain_id` under a key of the bank: it names nothing.
alter table memory.memories add column retain_tag bytea;
create index memories_retain on memory.memories (bank, retain_tag) where retain_tag is not null;

-- As the older form, with the retain tags, and with the digest in the same call.
create function memory.put(b text, who text, ids text[], fact_types text[], occurred timestamptz[], pages bigint[],
                           slots int[], sealeds bytea[], tags bytea[])
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
      digest = memory.digest_sum(digest, (select sum(memory.digest_term(t.id, base + t.o))
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

-- The memories of a bank that go when these ids are asked for: themselves, and other chunks of the same author's retain.
create function memory.together(b text, xs text[]) returns text[] language sql stable set search_path = '' as $$
  select coalesce(array_agg(t.id), '{}') from (
    select id from memory.memories where bank = b and id = any (xs)
    union
    select other.id from memory.memories asked join memory.memories other using (bank, author, retain_tag)
    where asked.bank = b and asked.id = any (xs)) t
$$;

-- Ids that this bank knows nothing of. Whether another bank does makes no difference that anyone could see.
create function memory.unseen(b text, xs text[]) returns text[] language sql volatile set search_path = '' as $$
  select coalesce(array_agg(distinct x), '{}') from unnest(xs) x
  where not exists (select 1 from memory.memories where bank = b and id = x)
    and not exists (select 1 from memory.tombstones where bank = b and id = x)
$$;

-- Leaves tombstones of ids that were never here, numbered after `top`; the caller has the head locked.
create function memory.bury_unseen(b text, unseen text[], top bigint, how text) returns void
language sql volatile set search_path = '' as $$
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, top + t.o, t.id, how from unnest(unseen) with ordinality t(id, o);
  insert into memory.tombstones (bank, id, last_seq)
  select b, t.id, top + t.o from unnest(unseen) with ordinality t(id, o);
$$;

-- Hides memories from recall, kept for as_of, and buries ids that were never seen. An absent bank stays absent.
create function memory.hide(b text, xs text[], out deleted int, out buried int)
language plpgsql security definer set search_path = '' as $$
declare
  hit text[];
  unseen text[];
  old_terms numeric;
  top bigint;
begin
  deleted := 0;
  buried := 0;
  if not exists (select 1 from memory.heads where bank = b) then
    return;
  end if;
  -- Claimed first: it waits for a push of the same id, and the statements below see what that stored.
  insert into memory.memory_ids (id, bank) select x, b from unnest(xs) x order by x on conflict do nothing;
  select coalesce(array_agg(t.id), '{}'), coalesce(sum(memory.digest_term(t.id, t.last_seq)), 0) into hit, old_terms
  from (select id, last_seq from memory.memories
        where bank = b and id = any (memory.together(b, xs)) and not forgotten order by id for update) t;
  if cardinality(hit) = 0 and cardinality(memory.unseen(b, xs)) = 0 then
    return;
  end if;
  select head into top from memory.heads where bank = b for update;
  perform memory.refuse_when_held(b);
  -- Asked again under the lock: another call may have buried them meanwhile.
  unseen := memory.unseen(b, xs);
  deleted := cardinality(hit);
  buried := cardinality(unseen);
  update memory.heads set head = top + deleted + buried, live = live - deleted,
    digest = memory.digest_sum(digest, -old_terms) where bank = b;
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, top + o, i, 'forget' from unnest(hit) with ordinality t(i, o);
  update memory.memories m set forgotten = true, last_seq = top + o
  from unnest(hit) with ordinality t(i, o) where m.bank = b and m.id = i;
  perform memory.bury_unseen(b, unseen, top + deleted, 'forget');
end $$;

create or replace function memory.forget(b text, xs text[]) returns int
language sql security definer set search_path = '' as $$ select deleted from memory.hide(b, xs) $$;

-- Buries memories, hidden ones too: their rows leave, their tombstones and the keys to destroy are written in the same
-- commit. An id that was never seen gets its tombstone; it has no key, so by itself it makes no operation. `alone` leaves
-- the other chunks of a retain, for memories that go because they cannot be opened.
drop function memory.erase(text, text[], text, text);
create function memory.erase(b text, xs text[], who text, operation text, alone boolean default false)
returns table (deleted int, erased int, through bigint, buried int)
language plpgsql security definer set search_path = '' as $$
declare
  hit text[];
  unseen text[];
  live_terms numeric;
  alive int;
  top bigint;
  n int;
begin
  if not exists (select 1 from memory.heads where bank = b) then
    return query select 0, 0, 0::bigint, 0;
    return;
  end if;
  insert into memory.memory_ids (id, bank) select x, b from unnest(xs) x order by x on conflict do nothing;
  select coalesce(array_agg(t.id), '{}'),
         coalesce(sum(memory.digest_term(t.id, t.last_seq)) filter (where not t.forgotten), 0),
         count(*) filter (where not t.forgotten)
  into hit, live_terms, alive
  from (select id, last_seq, forgotten from memory.memories
        where bank = b and id = any (case when alone then xs else memory.together(b, xs) end) order by id for update) t;
  n := cardinality(hit);
  if n = 0 and cardinality(memory.unseen(b, xs)) = 0 then
    return query select 0, 0, 0::bigint, 0;
    return;
  end if;
  select head into top from memory.heads where bank = b for update;
  perform memory.refuse_when_held(b);
  unseen := memory.unseen(b, xs);
  update memory.heads set head = top + n + cardinality(unseen), live = live - alive,
    digest = memory.digest_sum(digest, -live_terms) where bank = b;
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, top + o, i, 'erase' from unnest(hit) with ordinality t(i, o);
  insert into memory.tombstones (bank, id, last_seq)
  select b, i, top + o from unnest(hit) with ordinality t(i, o);
  perform memory.bury_unseen(b, unseen, top + n, 'erase');
  if n > 0 then
    insert into memory.erasures (erasure_id, bank, requested_by, through_seq) values (operation, b, who, top + n);
    insert into memory.key_destructions (bank, id, erasure_id, key_page, key_slot)
    select b, id, operation, key_page, key_slot from memory.memories where bank = b and id = any (hit);
    delete from memory.memories where bank = b and id = any (hit);
    delete from memory.subject_links where bank = b and kind = 'memory' and object_id = any (hit);
  end if;
  return query select alive, n, top + n + cardinality(unseen), cardinality(unseen);
end $$;

revoke all on all functions in schema memory from public;
grant execute on function memory.put(text, text, text[], text[], timestamptz[], bigint[], int[], bytea[], bytea[]),
  memory.hide to teamlore_sync;
grant execute on function memory.erase to teamlore_sync, teamlore_compliance;
