-- A device leaves by being retired. Its row stays, so that a receipt can say so, until newer ones of its principal crowd
-- it out: what one principal can make a receipt carry has an end.
alter table memory.mirrors add column retired_at timestamptz;

-- Makes a device known, or known again. Answers `new` or `known`; `foreign` where it is another principal's, `full` where
-- the principal has as many in the bank as it may.
create function memory.admit_device(b text, device text, who text, most int) returns text
language plpgsql security definer set search_path = '' as $$
begin
  -- One principal's registrations in a bank wait for each other, or several at once would pass the limit together.
  perform pg_advisory_xact_lock(hashtextextended(b || ' ' || who, 29));
  if exists (select 1 from memory.mirrors where device_id = device and principal <> who) then
    return 'foreign';
  end if;
  update memory.mirrors set last_seen_at = clock_timestamp()
  where bank = b and device_id = device and retired_at is null;
  if found then
    return 'known';
  end if;
  if (select count(*) from memory.mirrors where bank = b and principal = who and retired_at is null) >= most then
    return 'full';
  end if;
  -- One that comes back may have kept its copy: what it had not confirmed it still has to.
  insert into memory.mirrors (bank, device_id, principal, acked_seq)
  values (b, device, who, coalesce((select head from memory.heads where bank = b), 0))
  on conflict (bank, device_id) do update set last_seen_at = clock_timestamp(), retired_at = null
  where memory.mirrors.principal = excluded.principal;
  if not found then
    return 'foreign';
  end if;
  delete from memory.mirrors where bank = b and device_id in (
    select m.device_id from memory.mirrors m where m.bank = b and m.principal = who and m.retired_at is not null
    order by m.retired_at desc, m.device_id offset most);
  return 'new';
end $$;

-- Retires a device; of any principal where `who` is null. True where this call did.
create function memory.retire_device(b text, device text, who text) returns boolean
language sql security definer set search_path = '' as $$
  update memory.mirrors set retired_at = clock_timestamp()
  where bank = b and device_id = device and (who is null or principal = who) and retired_at is null returning true
$$;

create index mirrors_of on memory.mirrors (bank, principal);

revoke all on function memory.admit_device, memory.retire_device from public;
grant execute on function memory.admit_device, memory.retire_device to teamlore_feed;
