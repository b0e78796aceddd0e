-- A change without a present person takes the word of one away. The older form stays for replicas not yet replaced.
create function memory.status(b text, x text, seen int, new_status text, new_trust text, stale boolean, successor text,
                              verified timestamptz, by_person boolean)
returns table (outcome text, now_version int, now_seq bigint)
language plpgsql security definer set search_path = '' as $$
declare
  m memory.memories;
  top bigint;
begin
  select * into m from memory.memories where bank = b and id = x and not forgotten for update;
  if not found then
    return;
  end if;
  if m.version <> seen then
    return query select 'conflict', m.version, m.last_seq;
    return;
  end if;
  if successor <> '' and (successor = x or not exists (
       select 1 from memory.memories where bank = b and id = successor and not forgotten)) then
    return query select 'no successor', m.version, m.last_seq;
    return;
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

create or replace function memory.status(b text, x text, seen int, new_status text, new_trust text, stale boolean,
                                         successor text, verified timestamptz)
returns table (outcome text, now_version int, now_seq bigint)
language sql security definer set search_path = '' as $$
  select * from memory.status(b, x, seen, new_status, new_trust, stale, successor, verified,
                              coalesce(new_trust = 'human', false))
$$;

revoke all on function memory.status(text, text, int, text, text, boolean, text, timestamptz, boolean) from public;
grant execute on function memory.status(text, text, int, text, text, boolean, text, timestamptz, boolean)
  to teamlore_sync;
