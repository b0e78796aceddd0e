-- What was asked to be forgotten binds what is pushed late, in two more ways. It is buried also where nobody has made the bank
-- yet: a late push would make it. Neither a row of the bank nor its head is needed for that, since a tombstone that no mirror
-- can have heard of has no step to tell. And it binds late chunks of the same retain, below.

-- Raises where no bank can have this id, before a row is tried, so that no log quotes it.
create function memory.require_bank_id(b text) returns void
language plpgsql immutable set search_path = '' as $$
begin
  if b !~ '^[A-Za-z0-9._:@-]{1,255}$' or split_part(b, ':', 2) = ''
     -- `team:` begins the name of a group, never of a bank.
     or split_part(b, ':', 1) not in ('project', 'space', 'system', 'client', 'private') then
    raise exception 'a bank id is a layer, a colon and a name' using errcode = '23514', constraint = 'scope_of_layer';
  end if;
  if b like 'client:%' and
     b !~ '^client:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:[A-Za-z0-9._-]{1,64}$'
     or b like 'private:%' and b !~ '^private:(user|agent|service):[A-Za-z0-9._@-]{1,100}$' then
    raise exception 'the ids in a bank id break their rules' using errcode = '23514', constraint = 'ids_of_layer';
  end if;
end $$;

create or replace function memory.open_bank(b text) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  made boolean;
begin
  perform memory.require_bank_id(b);
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

-- Claims ids for a burial, which waits for a push of the same ids, so that what follows sees what that stored. In a bank
-- that is not there they are buried at once: how many, or null where the bank is there.
create function memory.claim_for_burial(b text, xs text[]) returns int
language plpgsql set search_path = '' as $$
declare
  buried int;
begin
  if not exists (select 1 from memory.heads where bank = b) then
    perform memory.require_bank_id(b);
  end if;
  insert into memory.memory_ids (id, bank) select x, b from unnest(xs) x order by x on conflict do nothing;
  -- Asked again: what was waited for may have made the bank.
  if exists (select 1 from memory.heads where bank = b) then
    return null;
  end if;
  insert into memory.tombstones (bank, id, last_seq) select b, x, null from unnest(xs) x order by x on conflict do nothing;
  get diagnostics buried = row_count;
  return buried;
end $$;

-- As before; one that was buried before its bank was made, a moment ago, gets its step.
create or replace function memory.bury_unseen(b text, unseen text[], top bigint, how text) returns void
language sql volatile set search_path = '' as $$
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, top + t.o, t.id, how from unnest(unseen) with ordinality t(id, o);
  insert into memory.tombstones (bank, id, last_seq)
  select b, t.id, top + t.o from unnest(unseen) with ordinality t(id, o)
  on conflict (bank, id) do update set last_seq = excluded.last_seq;
$$;

-- Chunks of one retain go together, those too that come late: its tag stays when they go, and binds its author's later
-- pushes. It is a keyed digest of who retained and of the retain's id, and tells nothing of a text. Of what was erased
-- before this table was there no tag is left.
create table memory.spent_retains (
  bank text not null,
  retain_tag bytea not null,
  primary key (bank, retain_tag)
);
insert into memory.spent_retains (bank, retain_tag)
select distinct bank, retain_tag from memory.memories where forgotten and retain_tag is not null;

-- Notes the retains of memories that are about to go; the caller has the head locked.
create function memory.spend_retains(b text, xs text[]) returns void language sql volatile set search_path = '' as $$
  insert into memory.spent_retains (bank, retain_tag)
  select distinct b, retain_tag from memory.memories where bank = b and id = any (xs) and retain_tag is not null
  on conflict do nothing
$$;

-- Locks what goes when these ids are asked for, hidden ones only `with_hidden`, and then the head, whose number is `top`: null
-- where there is nothing to do. `alone` leaves the other chunks of a retain, for memories that go because they cannot be
-- opened; else their retains are spent.
create function memory.lock_doomed(b text, xs text[], with_hidden boolean, alone boolean, out hit text[], out unseen text[],
                                   out alive int, out live_terms numeric, out top bigint)
language plpgsql set search_path = '' as $$
declare
  doomed text[];
begin
  loop
    begin
      doomed := case when alone then xs else memory.together(b, xs) end;
      select coalesce(array_agg(t.id), '{}'),
             coalesce(sum(memory.digest_term(t.id, t.last_seq)) filter (where not t.forgotten), 0),
             count(*) filter (where not t.forgotten)
      into hit, live_terms, alive
      from (select id, last_seq, forgotten from memory.memories
            where bank = b and id = any (doomed) and (with_hidden or not forgotten) order by id for update) t;
      if cardinality(hit) = 0 and cardinality(memory.unseen(b, xs)) = 0 then
        return;
      end if;
      select head into top from memory.heads where bank = b for update;
      perform memory.refuse_when_held(b);
      -- Asked again under the lock: another call may have buried them meanwhile.
      unseen := memory.unseen(b, xs);
      exit when alone or memory.together(b, xs) <@ doomed;
      -- Who had the head before has stored another chunk. Rows are locked before the head, by everybody: so once more.
      raise exception 'another chunk came in' using errcode = 'TL002';
    exception when sqlstate 'TL002' then
      null;  -- and with the block its locks are gone
    end;
  end loop;
  if not alone then
    perform memory.spend_retains(b, hit);
  end if;
end $$;

create or replace function memory.hide(b text, xs text[], out deleted int, out buried int)
language plpgsql security definer set search_path = '' as $$
declare
  doomed record;
begin
  deleted := 0;
  buried := memory.claim_for_burial(b, xs);
  if buried is not null then
    return;
  end if;
  buried := 0;
  doomed := memory.lock_doomed(b, xs, false, false);
  if doomed.top is null then
    return;
  end if;
  deleted := cardinality(doomed.hit);
  buried := cardinality(doomed.unseen);
  update memory.heads set head = head + deleted + buried, live = live - deleted,
    digest = memory.digest_sum(digest, -doomed.live_terms) where bank = b;
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, doomed.top + o, i, 'forget' from unnest(doomed.hit) with ordinality t(i, o);
  update memory.memories m set forgotten = true, last_seq = doomed.top + o
  from unnest(doomed.hit) with ordinality t(i, o) where m.bank = b and m.id = i;
  perform memory.bury_unseen(b, doomed.unseen, doomed.top + deleted, 'forget');
end $$;

create or replace function memory.erase(b text, xs text[], who text, operation text, alone boolean default false)
returns table (deleted int, erased int, through bigint, buried int)
language plpgsql security definer set search_path = '' as $$
declare
  doomed record;
begin
  deleted := 0;
  erased := 0;
  through := 0;
  buried := memory.claim_for_burial(b, xs);
  if buried is not null then
    return next;
    return;
  end if;
  buried := 0;
  doomed := memory.lock_doomed(b, xs, true, alone);
  if doomed.top is null then
    return next;
    return;
  end if;
  deleted := doomed.alive;
  erased := cardinality(doomed.hit);
  buried := cardinality(doomed.unseen);
  through := doomed.top + erased + buried;
  update memory.heads set head = through, live = live - deleted,
    digest = memory.digest_sum(digest, -doomed.live_terms) where bank = b;
  insert into memory.changes (bank, seq, memory_id, kind)
  select b, doomed.top + o, i, 'erase' from unnest(doomed.hit) with ordinality t(i, o);
  insert into memory.tombstones (bank, id, last_seq)
  select b, i, doomed.top + o from unnest(doomed.hit) with ordinality t(i, o);
  perform memory.bury_unseen(b, doomed.unseen, doomed.top + erased, 'erase');
  if erased > 0 then
    insert into memory.erasures (erasure_id, bank, requested_by, through_seq)
    values (operation, b, who, doomed.top + erased);
    insert into memory.key_destructions (bank, id, erasure_id, key_page, key_slot)
    select b, id, operation, key_page, key_slot from memory.memories where bank = b and id = any (doomed.hit);
    delete from memory.memories where bank = b and id = any (doomed.hit);
    delete from memory.subject_links where bank = b and kind = 'memory' and object_id = any (doomed.hit);
  end if;
  return next;
end $$;

-- As before; a late chunk of a spent retain is buried instead of stored. Its row has no seq. No mirror has heard of it, so
-- that no step has to be told, and who pushes it is told that it was forgotten. Records without a retain pay nothing.
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
  if cardinality(won) = 0 then
    return;
  end if;
  select head into base from memory.heads where bank = b for update;
  if cardinality(array_remove(tags, null)) > 0 then
    return query
    insert into memory.tombstones (bank, id, last_seq)
    select b, s.id, null from unnest(ids, tags) s(id, tag)
    where s.id = any (won) and exists (select 1 from memory.spent_retains r where r.bank = b and r.retain_tag = s.tag)
    returning id, last_seq;
    if found then
      select coalesce(array_agg(x order by x), '{}') into won from unnest(won) x
      where not exists (select 1 from memory.tombstones where bank = b and id = x);
    end if;
  end if;
  n := cardinality(won);
  if n = 0 then
    return;
  end if;
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

-- As before; what was buried is no memory, and stands in the audit row all the same.
create or replace function memory.push(b text, who text, ids text[], fact_types text[], occurred timestamptz[],
                                       pages bigint[], slots int[], sealeds bytea[], tags bytea[], quota boolean,
                                       call uuid, audit_name text, caller text, token text)
returns text[] language plpgsql security definer set search_path = '' as $$
declare
  won text[];
  done int;
begin
  select coalesce(array_agg(stored_id) filter (where stored_seq is not null), '{}'), count(*) into won, done
  from memory.put(b, who, ids, fact_types, occurred, pages, slots, sealeds, tags);
  if done > 0 then
    if quota and cardinality(won) > 0 then
      -- After the head, as everywhere: who waits here holds nothing that its holder needs.
      perform memory.count_records(who, cardinality(won));
    end if;
    perform compliance.record_call(call, audit_name, caller, token, b, done);
  end if;
  return won;
end $$;

-- As before; what is erased again spends its retains again, which the backup may not have known.
create or replace function memory.erase_again(operation text, b text, xs text[], pages bigint[], slots int[], who text)
returns int language plpgsql security definer set search_path = '' as $$
declare
  held text[];
begin
  if exists (select from memory.erasures where erasure_id = operation) then
    return null;
  end if;
  perform memory.open_bank(b);
  perform 1 from memory.heads where bank = b for update;
  with aside as (
    update memory.holds set lifted_at = clock_timestamp() where bank = b and lifted_at is null returning hold_id)
  select array_agg(hold_id) into held from aside;
  perform memory.spend_retains(b, xs);
  perform memory.erase(b, xs, who, operation, true);
  update memory.holds set lifted_at = null where hold_id = any (held);
  -- Where the backup knew none of them there are tombstones now, and no operation yet.
  insert into memory.erasures (erasure_id, bank, requested_by, through_seq)
  select operation, b, who, head from memory.heads where bank = b on conflict do nothing;
  -- The keys are zeroed already; their places are told so that the erasure goes through its stages, vectors included.
  insert into memory.key_destructions (bank, id, erasure_id, key_page, key_slot)
  select b, t.id, operation, t.page, t.slot from unnest(xs, pages, slots) t(id, page, slot) on conflict do nothing;
  return cardinality(xs);
end $$;

revoke all on function memory.require_bank_id, memory.claim_for_burial, memory.spend_retains, memory.lock_doomed from public;
