-- name: head
-- Where a bank's history stands, with the nonce of its newest change; no row for an absent bank.
select h.head, h.live, h.digest, h.horizon, h.epoch,
       case when h.head = h.horizon then h.horizon_nonce
            else (select c.nonce from memory.change_log c where c.bank = h.bank and c.seq = h.head) end as nonce
from memory.bank_heads h where h.bank = $1

-- name: epoch
-- The epoch of this history.
select epoch from memory.epochs

-- name: page
-- What a cursor at seq $2 is judged by (`at` is null where the history has no such step), with one page of changes after
-- it: the changes first, then each one's memory by its key. Superseded steps carry no memory; a bank always has a row.
-- The limit of `m` keeps the planner from joining all memories of the bank to one page of changes; that of `h` from
-- expecting thousands of heads and so keeping each memory in case that it is asked for again, which costs a sixth.
with h as materialized (
  select head, horizon, epoch,
         case when $2 = horizon then horizon_nonce
              else (select nonce from memory.change_log where bank = $1 and seq = $2) end as at
  from memory.bank_heads where bank = $1 limit 1),
page as materialized (
  select seq, memory_id, kind, nonce, changed_at from memory.change_log where bank = $1 and seq > $2 order by seq limit $3)
select p.seq, p.kind, p.nonce, p.memory_id, m.key_page, m.key_slot, m.sealed,
       timestamptz_send(p.changed_at) || timestamptz_send(coalesce(m.retained_at, p.changed_at)) as moments,
       timestamptz_send(m.occurred_at) as occurred_at, timestamptz_send(m.last_verified) as last_verified,
       record_send(row(m.fact_type, m.derivation, m.author, m.lane, m.status, m.version, m.trust, m.may_be_stale, m.superseded_by)) as shared,
       h.head, h.horizon, h.epoch, h.at
from h left join page p on true
     left join lateral (select * from memory.live_memories
                        where bank = $1 and id = p.memory_id and last_seq = p.seq limit 1) m on true
order by p.seq

-- name: live
-- One page of live memories by id, in the columns of `page`.
select m.last_seq as seq, 'upsert' as kind, 0::bigint as nonce, m.id as memory_id, m.key_page, m.key_slot, m.sealed,
       (select timestamptz_send(changed_at) from memory.change_log where bank = $1 and seq = m.last_seq)
         || timestamptz_send(m.retained_at) as moments,
       timestamptz_send(m.occurred_at) as occurred_at, timestamptz_send(m.last_verified) as last_verified,
       record_send(row(m.fact_type, m.derivation, m.author, m.lane, m.status, m.version, m.trust, m.may_be_stale, m.superseded_by)) as shared
from memory.live_memories m where m.bank = $1 and m.id > $2 order by m.id limit $3

-- name: live_as_of
-- One page of what was live at seq $3, with where the bank stands: a memory that had come and had not been forgotten. In
-- the columns of `live`; a bank always has a row.
with h as materialized (select head, horizon from memory.bank_heads where bank = $1 limit 1),
page as materialized (
  select * from memory.present_memories
  where bank = $1 and id > $2 and first_seq <= $3 and (not forgotten or last_seq > $3) order by id limit $4)
select m.last_seq as seq, 'upsert' as kind, 0::bigint as nonce, m.id as memory_id, m.key_page, m.key_slot, m.sealed,
       (select timestamptz_send(changed_at) from memory.change_log where bank = $1 and seq = m.last_seq)
         || timestamptz_send(m.retained_at) as moments,
       timestamptz_send(m.occurred_at) as occurred_at, timestamptz_send(m.last_verified) as last_verified,
       record_send(row(m.fact_type, m.derivation, m.author, m.lane, m.status, m.version, m.trust, m.may_be_stale, m.superseded_by)) as shared, h.head, h.horizon
from h left join page m on true order by m.id

-- name: still_there
-- Which of these (id, seq) pairs are still a memory's newest step.
select m.id from memory.present_memories m join unnest($2::text[], $3::bigint[]) t(id, seq)
  on m.id = t.id and m.last_seq = t.seq where m.bank = $1

-- name: heads_of
-- The heads of watched banks, in one query.
select bank, head from memory.bank_heads where bank = any ($1)

-- name: admit_device
-- Makes a device known: `new` or `known`; `foreign` where it belongs to another principal, `full` at the limit.
select memory.admit_device($1, $2, $3, $4)

-- name: retire_device
-- Retires a device, of any principal where $3 is null; no row where that changed nothing.
select memory.retire_device($1, $2, $3)

-- name: device_is_known
-- Whether a bank has such a device, of any principal where $3 is null.
select exists (select from memory.mirrors where bank = $1 and device_id = $2 and ($3::text is null or principal = $3))

-- name: devices
-- One page of a bank's devices by id, of any principal where $2 is null.
select device_id, principal, registered_at, last_seen_at, acked_seq, retired_at from memory.mirrors
where bank = $1 and ($2::text is null or principal = $2) and device_id > $3 order by device_id limit $4

-- name: ack_erasure
-- Records what a device has purged; no row where it is not registered by this principal.
select memory.ack_erasure($1, $2, $3, $4)
