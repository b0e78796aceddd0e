-- The horizon: what every mirror has had long ago need not be told again. It is raised in one short commit that takes the
-- head; what then lies below it leaves in small transactions that take no head, and so hold up no writer.

-- A tombstone stays for as long as the bank, so that what was erased never returns; only its change leaves.
alter table memory.tombstones alter last_seq drop not null;

-- A legal hold keeps a bank's history as it is.
create function memory.is_held(b text) returns boolean language sql stable set search_path = '' as $$
  select exists (select from memory.holds where bank = b and lifted_at is null)
$$;

-- Passes over changes that are older than `older_than`, that the index has followed, and whose deletions every device has
-- confirmed that was seen within `seen_within`. `waits_for` says who kept it lower: `index`, `device`, `hold` or nobody (empty).
-- `was` is null for a bank that is not there.
create function memory.raise_horizon(b text, older_than interval, seen_within interval, out was bigint, out now_at bigint,
                                     out waits_for text)
language plpgsql security definer set search_path = '' as $$
declare
  top bigint;
  followed bigint;
  confirmed bigint;
  unconfirmed bigint;
  target bigint;
begin
  waits_for := '';
  select head, horizon, horizon into top, was, now_at from memory.heads where bank = b;
  if was is null then
    return;
  end if;
  -- Above the horizon every change is there, so that this walks over what is old and stops at the first that is not.
  select seq - 1 into target from memory.changes
  where bank = b and seq > was and changed_at >= clock_timestamp() - older_than order by seq limit 1;
  target := coalesce(target, top);
  -- A vector must not outlive the tombstone that would have taken it away.
  followed := coalesce((select seq from index.cursors where bank = b), 0);
  if followed < target then
    target := greatest(followed, was);
    waits_for := 'index';
  end if;
  select min(acked_seq) into confirmed from memory.mirrors
  where bank = b and retired_at is null and last_seen_at >= clock_timestamp() - seen_within;
  if confirmed is not null then
    select seq into unconfirmed from memory.changes
    where bank = b and seq > greatest(confirmed, was) and seq <= target and kind in ('forget', 'erase')
    order by seq limit 1;
    if unconfirmed is not null then
      target := unconfirmed - 1;
      waits_for := 'device';
    end if;
  end if;
  if target <= was then
    return;
  end if;
  -- From here to the commit writers wait: holds are placed under this lock.
  perform 1 from memory.heads where bank = b for update;
  if memory.is_held(b) then
    waits_for := 'hold';
    return;
  end if;
  update memory.heads h set horizon = c.seq, horizon_nonce = c.nonce from memory.changes c
  where h.bank = b and h.horizon = was and c.bank = b and c.seq = target;
  if found then
    now_at := target;
  end if;
end $$;

-- Takes away what nobody can be told any more of the next `most` changes after `after`, up to the horizon: steps that
-- later ones superseded, and old tombstones' steps. The last step of a memory that is there stays: the foreign key would
-- refuse anything else. `through` is where to go on; null at the end.
create function memory.trim(b text, after bigint, most int, out through bigint, out removed int)
language plpgsql security definer set search_path = '' as $$
declare
  seqs bigint[];
  ids text[];
  dead bigint[];
begin
  select max(t.seq), array_agg(t.seq), array_agg(t.memory_id) into through, seqs, ids from (
    select c.seq, c.memory_id from memory.changes c
    where c.bank = b and c.seq > after and c.seq <= (select horizon from memory.heads where bank = b)
    order by c.seq limit most) t;
  removed := 0;
  if through is null or memory.is_held(b) then
    through := null;
    return;
  end if;
  -- Each by its key: a join would read all of the bank for one window.
  update memory.tombstones set last_seq = null
  where bank = b and id = any (ids) and last_seq > after and last_seq <= through;
  select array_agg(u.seq) into dead
  from unnest(seqs, ids) u(seq, id)
    left join lateral (select true as there from memory.memories
                       where bank = b and id = u.id and last_seq = u.seq limit 1) m on true
  where m.there is null;
  delete from memory.changes where bank = b and seq = any (dead);
  get diagnostics removed = row_count;
end $$;

revoke all on function memory.is_held, memory.raise_horizon, memory.trim from public;
grant execute on function memory.raise_horizon, memory.trim to teamlore_sync;
