-- As before, but a memory's successor is live when this commits, and its own successors come to an end that is not this memory:
-- of two that take each other's place neither would be recalled.
create or replace function memory.status(b text, x text, seen int, new_status text, new_trust text, stale boolean, successor text,
                              verified timestamptz, by_person boolean)
returns table (outcome text, now_version int, now_seq bigint)
language plpgsql security definer set search_path = '' as $$
declare
  m memory.memories;
  top bigint;
  onward text := successor;
  ends boolean := false;
begin
  select * into m from memory.memories where bank = b and id = x and not forgotten for update;
  if not found then
    return;
  end if;
  if m.version <> seen then
    return query select 'conflict', m.version, m.last_seq;
    return;
  end if;
  if successor <> '' then
    -- Under the head's lock: of two that name each other at once the later one sees the earlier, and nobody forgets it now.
    perform 1 from memory.heads where bank = b for update;
    for step in 1..1000 loop
      exit when onward = x;
      select superseded_by into onward from memory.memories where bank = b and id = onward and not forgotten;
      if not found or onward = '' then
        ends := found or step > 1;
        exit;
      end if;
    end loop;
    if not ends then
      return query select 'no successor', m.version, m.last_seq;
      return;
    end if;
  end if;
  if (m.status, m.trust, m.may_be_stale, m.superseded_by, m.last_verified) is not distinct from
     (coalesce(new_status, m.status), coalesce(new_trust, m.trust), coalesce(stale, m.may_be_stale),
      coalesce(successor, m.superseded_by), coalesce(verified, m.last_verified)) then
    return query select 'same', m.version, m.last_seq;
    return;
  end if;
  -- What a person vouched for is no longer what stands: the word `human` stays only where a person made the change.
  if m.trust = 'human' and not by_person then
    new_trust := coalesce(new_trust, 'agent_verified');
  end if;
  select head into top from memory.heads where bank = b for update;
  update memory.heads set head = top + 1,
    digest = memory.digest_sum(digest, memory.digest_term(x, top + 1) - memory.digest_term(x, m.last_seq))
  where bank = b;
  insert into memory.changes (bank, seq, memory_id, kind) values (b, top + 1, x, 'status');
  update memory.memories set status = coalesce(new_status, status), trust = coalesce(new_trust, trust),
    may_be_stale = coalesce(stale, may_be_stale), superseded_by = coalesce(successor, superseded_by),
    last_verified = coalesce(verified, last_verified), version = version + 1, last_seq = top + 1
  where bank = b and id = x;
  return query select 'done', m.version + 1, top + 1;
end $$;
