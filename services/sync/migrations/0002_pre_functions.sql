-- The only ways to write a memory. Lock order everywhere: ids sorted, then the head; nothing to do takes no head.

-- The term that one live memory adds to its bank's digest: the first 8 bytes, big-endian, of
-- SHA-256(id, a zero byte, decimal seq), as an unsigned number.
create function memory.digest_term(id text, seq bigint) returns numeric language sql immutable parallel safe as $$
  select case when n < 0 then n::numeric + 18446744073709551616 else n::numeric end
  from (select ('x' || encode(substr(sha256(convert_to(id, 'UTF8') || '\x00'::bytea || convert_to(seq::text, 'UTF8')),
                                     1, 8), 'hex'))::bit(64)::bigint) t(n)
$$;

create function memory.digest_sum(digest numeric, delta numeric) returns numeric language sql immutable as $$
  select ((digest + delta) % 18446744073709551616 + 18446744073709551616) % 18446744073709551616
$$;

-- Makes the bank's row and head where they are missing; the id tells the layer.
create function memory.open_bank(b text) returns boolean language plpgsql security definer set search_path = '' as $$
declare
  made boolean;
begin
  if split_part(b, ':', 2) = '' then
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

-- Stores new memories of one author; answers the ids that were won. An id that exists anywhere is left alone.
create function memory.put(b text, who text, ids text[], fact_types text[], occurred timestamptz[], pages bigint[],
                           slots int[], sealeds bytea[])
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
  l as (insert into memory.subject_links (principal, kind, bank, object_id, role)
        select who, 'memory', b, id, 'author' from r on conflict do nothing),
  m as (
    insert into memory.memories (bank, id, author, fact_type, occurred_at, key_page, key_slot, sealed, last_seq)
    select b, id, who, fact_type, occurred_at, key_page, key_slot, sealed, seq from r returning id, last_seq)
  select id, last_seq from m
$$;

-- The digest follows in the same transaction, under the head lock that `put` took.
create function memory.add_to_digest(b text, ids text[], seqs bigint[]) returns void
language sql security definer set search_path = '' as $$
  update memory.heads
  set digest = memory.digest_sum(digest, (select sum(memory.digest_term(t.id, t.seq)) from unnest(ids, seqs) t(id, seq)))
  where bank = b
$$;

-- One rule decides whether text may be destroyed; whoever calls it has the bank's head row locked.
create function memory.refuse_when_held(b text) returns void language plpgsql set search_path = '' as $$
begin
  if exists (select 1 from memory.holds where bank = b and lifted_at is null) then
    raise exception 'the bank is under a legal hold' using errcode = 'TL001';
  end if;
end $$;

-- Hides memories from recall, kept for as_of; answers how many.
create function memory.forget(b text, xs text[]) returns int language plpgsql security definer set search_path = '' as $$
declare
  hit text[];
  old_terms numeric;
  top bigint;
  n int;
begin
  select coalesce(array_agg(t.id), '{}'), sum(memory.digest_term(t.id, t.last_seq)) into hit, old_terms
  from (select id, last_seq from memory.memories
        where bank = b and id = any (xs) and not forgotten order by id for update) t;
  n := cardinality(hit);
  if n = 0 then
    return 0;
  end if;
  update memory.heads set head = head + n, live = live - n, digest = memory.digest_sum(digest, -old_terms)
  where bank = b returning head into top;
  perform memory.refuse_when_held(b);
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, top - n + o, i, 'forget' from unnest(hit) with ordinality t(i, o);
  update memory.memories m set forgotten = true, last_seq = top - n + o
  from unnest(hit) with ordinality t(i, o) where m.bank = b and m.id = i;
  return n;
end $$;

-- Buries memories: their rows leave, their tombstones and the keys to destroy are written in the same commit.
create function memory.erase(b text, xs text[], who text, operation text)
returns table (deleted int, erased int, through bigint)
language plpgsql security definer set search_path = '' as $$
declare
  hit text[];
  live_terms numeric;
  alive int;
  top bigint;
  n int;
begin
  select coalesce(array_agg(t.id), '{}'), coalesce(sum(memory.digest_term(t.id, t.last_seq)) filter (where not t.forgotten), 0),
         count(*) filter (where not t.forgotten)
  into hit, live_terms, alive
  from (select id, last_seq, forgotten from memory.memories
        where bank = b and id = any (xs) order by id for update) t;
  n := cardinality(hit);
  if n = 0 then
    return query select 0, 0, 0::bigint;
    return;
  end if;
  update memory.heads set head = head + n, live = live - alive, digest = memory.digest_sum(digest, -live_terms)
  where bank = b returning head into top;
  perform memory.refuse_when_held(b);
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, top - n + o, i, 'erase' from unnest(hit) with ordinality t(i, o);
  insert into memory.tombstones (bank, id, last_seq)
  select b, i, top - n + o from unnest(hit) with ordinality t(i, o);
  insert into memory.erasures (erasure_id, bank, requested_by, through_seq) values (operation, b, who, top);
  insert into memory.key_destructions (bank, id, erasure_id, key_page, key_slot)
  select b, id, operation, key_page, key_slot from memory.memories where bank = b and id = any (hit);
  delete from memory.memories where bank = b and id = any (hit);
  delete from memory.subject_links where bank = b and kind = 'memory' and object_id = any (hit);
  return query select alive, n, top;
end $$;

create function memory.place_hold(b text, hold text, reference text, who text, review timestamptz)
returns timestamptz language plpgsql security definer set search_path = '' as $$
declare
  at timestamptz;
begin
  perform memory.open_bank(b);
  perform 1 from memory.heads where bank = b for update;
  insert into memory.holds (hold_id, bank, matter, placed_by, review_at) values (hold, b, reference, who, review)
  returning placed_at into at;
  return at;
end $$;

create function memory.lift_hold(b text, hold text, who text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  perform 1 from memory.heads where bank = b for update;
  update memory.holds set lifted_at = clock_timestamp(), lifted_by = who
  where hold_id = hold and bank = b and lifted_at is null;
  return found;
end $$;

-- A device is one principal's, in every bank. One that is new holds nothing yet, so what was erased before it came needs no word from it.
create function memory.register_device(b text, device text, who text) returns boolean
language sql security definer set search_path = '' as $$
  insert into memory.mirrors (bank, device_id, principal, acked_seq)
  select b, device, who, coalesce((select head from memory.heads where bank = b), 0)
  where not exists (select 1 from memory.mirrors where device_id = device and principal <> who)
  on conflict (bank, device_id) do update set last_seen_at = clock_timestamp()
  where memory.mirrors.principal = excluded.principal
  returning true
$$;

create function memory.ack_erasure(b text, device text, who text, through bigint) returns boolean
language sql security definer set search_path = '' as $$
  update memory.mirrors set acked_seq = greatest(acked_seq, least(through, (select head from memory.heads where bank = b))),
                            last_seen_at = clock_timestamp()
  where bank = b and device_id = device and principal = who returning true
$$;

-- Marks keys as destroyed, after the key store has said so durably; answers how many were still open.
create function memory.finish_key_destruction(operation text, ids text[]) returns int
language sql security definer set search_path = '' as $$
  with done as (
    update memory.key_destructions set done_at = clock_timestamp()
    where erasure_id = operation and id = any (ids) and done_at is null returning 1)
  select count(*)::int from done
$$;

-- Moves an erasure one stage on; false where it is there already, so that a repeat is harmless.
create function memory.advance_erasure(operation text, from_state text, to_state text) returns boolean
language sql security definer set search_path = '' as $$
  update memory.erasures set state = to_state,
    keys_destroyed_at = case when to_state = 'keys_destroyed' then clock_timestamp() else keys_destroyed_at end,
    index_purged_at = case when to_state = 'index_purged' then clock_timestamp() else index_purged_at end
  where erasure_id = operation and state = from_state
    and (to_state <> 'keys_destroyed' or not exists (
      select 1 from memory.key_destructions k where k.erasure_id = operation and k.done_at is null))
  returning true
$$;

create function memory.finish_erasure(operation text, done timestamptz, words bytea, sig bytea, key bytea)
returns boolean language sql security definer set search_path = '' as $$
  update memory.erasures
  set state = 'server_done', server_done_at = done, statement = words, signature = sig, public_key = key
  where erasure_id = operation and state = 'index_purged' returning true
$$;

-- What other services may read.
create view memory.bank_heads as
  select h.bank, h.head, h.live, h.digest, h.horizon, h.horizon_nonce, e.epoch
  from memory.heads h cross join memory.history e;
create view memory.change_log as select bank, seq, memory_id, kind, nonce, changed_at from memory.changes;
create view memory.live_memories as
  select bank, id, author, lane, derivation, fact_type, status, version, occurred_at, retained_at, key_page, key_slot,
         sealed, last_seq
  from memory.memories where not forgotten;
create view memory.present_memories as select bank, id, forgotten, last_seq from memory.memories;
create view memory.epochs as select epoch from memory.history;

revoke all on all functions in schema memory from public;
grant usage on schema memory to teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant select on all tables in schema memory to teamlore_sync;
grant select on memory.bank_heads, memory.change_log, memory.live_memories, memory.present_memories, memory.epochs,
  memory.mirrors to teamlore_feed;
grant select on memory.bank_heads, memory.live_memories, memory.banks to teamlore_index;
grant select on memory.holds, memory.erasures, memory.key_destructions, memory.mirrors, memory.bank_heads
  to teamlore_compliance;
grant execute on function memory.open_bank, memory.put, memory.add_to_digest, memory.forget, memory.erase,
  memory.finish_key_destruction to teamlore_sync;
grant execute on function memory.register_device, memory.ack_erasure to teamlore_feed;
grant execute on function memory.open_bank, memory.place_hold, memory.lift_hold, memory.erase, memory.advance_erasure,
  memory.finish_erasure to teamlore_compliance;
