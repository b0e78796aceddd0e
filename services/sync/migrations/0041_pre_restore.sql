-- A restored database is told what was erased after its backup, from the ledger that the key store keeps.

-- Whether this database knows the newest erasure and the epoch that its key store knows of; false for one restored from
-- before them.
create function memory.is_not_older(erasure text, its_epoch bigint) returns boolean
language sql stable security definer set search_path = '' as $$
  select (erasure = '' or exists (select from memory.erasures where erasure_id = erasure))
     and (select epoch from memory.history) >= its_epoch
$$;

-- A history that begins anew: every cursor given before is told that its own is gone.
create function memory.begin_epoch(next bigint) returns boolean
language sql security definer set search_path = '' as $$
  update memory.history set epoch = next where epoch < next returning true
$$;

-- Erases again what was erased already, under the same operation; answers how many ids, null where that is known here.
-- A hold does not stop it: the restored one was lifted before the erasure, and the text is gone with its key whatever
-- is decided here. So it is set aside within this transaction, which nobody sees, and stands again at its end.
create function memory.erase_again(operation text, b text, xs text[], pages bigint[], slots int[], who text) returns int
language plpgsql security definer set search_path = '' as $$
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

revoke all on function memory.is_not_older, memory.begin_epoch, memory.erase_again from public;
grant execute on function memory.is_not_older
  to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant execute on function memory.begin_epoch, memory.erase_again to teamlore_compliance;
grant select on memory.epochs to teamlore_compliance;
