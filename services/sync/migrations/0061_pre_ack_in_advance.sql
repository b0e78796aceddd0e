-- A bank that is not there has come to seq 0, so that nobody confirms what will be erased in it: `least` passed over the null.
create or replace function memory.ack_erasure(b text, device text, who text, through bigint) returns boolean
language sql security definer set search_path = '' as $$
  update memory.mirrors
  set acked_seq = greatest(acked_seq, least(through, coalesce((select head from memory.heads where bank = b), 0))),
      last_seen_at = clock_timestamp()
  where bank = b and device_id = device and principal = who returning true
$$;

-- Who confirmed more than there was has confirmed nothing.
update memory.mirrors m set acked_seq = 0
where acked_seq > coalesce((select head from memory.heads h where h.bank = m.bank), 0);
