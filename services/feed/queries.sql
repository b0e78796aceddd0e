-- name: head
-- Where a bank's history stands, with the nonce of its newest change; no row for an absent bank.
select h.head, h.live, h.digest, h.horizon, h.epoch,
       case when h.head = h.horizon then h.horizon_nonce
            else (select c.nonce from memory.change_log c where c.bank = h.bank and c.seq = h.head) end as nonce
from memory.bank_heads h where h.bank = $1

-- name: resume
-- What a cursor at seq $2 is judged by; `nonce` is null where the history has no such step.
select h.head, h.horizon, h.epoch,
       case when $2 = h.horizon then h.horizon_nonce
            else (select c.nonce from memory.change_log c where c.bank = h.bank and c.seq = $2) end as nonce
from memory.bank_heads h where h.bank = $1

-- name: epoch
-- The epoch of this history.
select epoch from memory.epochs

-- name: page
-- One page of changes after a seq, then the memories they belong to; superseded steps carry no memory.
with page as materialized (
  select seq, memory_id, kind, nonce, changed_at from memory.change_log where bank = $1 and seq > $2 order by seq limit $3)
select p.seq, p.memory_id, p.kind, p.nonce, p.changed_at,
       (select head from memory.bank_heads where bank = $1) as head,
       m.author, m.lane, m.derivation, m.fact_type, m.status, m.version, m.occurred_at, m.retained_at, m.key_page,
       m.key_slot, m.sealed, m.trust, m.may_be_stale, m.superseded_by, m.last_verified
from page p left join memory.live_memories m on m.bank = $1 and m.id = p.memory_id and m.last_seq = p.seq
order by p.seq

-- name: live
-- One page of live memories by id.
select m.last_seq as seq, m.id as memory_id, 'upsert' as kind, 0::bigint as nonce, m.retained_at as changed_at,
       m.author, m.lane, m.derivation, m.fact_type, m.status, m.version, m.occurred_at, m.retained_at, m.key_page,
       m.key_slot, m.sealed, m.trust, m.may_be_stale, m.superseded_by, m.last_verified
from memory.live_memories m where m.bank = $1 and m.id > $2 order by m.id limit $3

-- name: still_live
-- Which of these (id, seq) pairs are still a live memory's newest step.
select m.id from memory.live_memories m join unnest($2::text[], $3::bigint[]) t(id, seq)
  on m.id = t.id and m.last_seq = t.seq where m.bank = $1

-- name: heads_of
-- The heads of watched banks, in one query.
select bank, head from memory.bank_heads where bank = any ($1)

-- name: register_device
-- Makes a device known; no row where it belongs to another principal.
select memory.register_device($1, $2, $3)

-- name: ack_erasure
-- Records what a device has purged; no row where it is not registered by this principal.
select memory.ack_erasure($1, $2, $3, $4)
