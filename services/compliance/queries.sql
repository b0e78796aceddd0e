-- name: place_hold
-- Places a hold under the bank's head lock; answers when.
select memory.place_hold($1, $2, $3, $4, $5)

-- name: lift_hold
-- Lifts a hold of a bank; true when this call lifted it.
select memory.lift_hold($1, $2, $3)

-- name: holds
-- The holds of a bank, lifted ones included, the newest first.
select hold_id, bank, matter, placed_by, placed_at, review_at, lifted_at from memory.holds
where bank = $1 order by placed_at desc, hold_id limit 1000

-- name: erase
-- Buries memories and writes down which keys must go.
select deleted, erased, through from memory.erase($1, $2, $3, $4)

-- name: open_erasures
-- Erasures that are not done; those whose keys still stand come first.
select erasure_id, bank, state from memory.erasures
where state <> 'server_done' order by state <> 'hidden', requested_at, erasure_id limit 1000

-- name: bank_of
-- The bank an erasure belongs to; no row for an unknown one.
select bank from memory.erasures where erasure_id = $1

-- name: memory_ids
-- The ids an erasure destroys.
select id from memory.key_destructions where erasure_id = $1 order by id

-- name: erasure
-- One erasure with its ids and the bank's mirrors, in one snapshot.
select e.erasure_id, e.bank, e.state, e.requested_at, e.hidden_at, e.keys_destroyed_at, e.index_purged_at,
       e.server_done_at, e.through_seq, e.statement, e.signature, e.public_key, now() as read_at,
       array(select k.id from memory.key_destructions k where k.erasure_id = e.erasure_id order by k.id) as memory_ids,
       array(select m.device_id from memory.mirrors m where m.bank = e.bank order by m.device_id) as devices,
       array(select m.acked_seq from memory.mirrors m where m.bank = e.bank order by m.device_id) as acked
from memory.erasures e where e.erasure_id = $1

-- name: advance_erasure
-- Moves an erasure from one state to the next; no value where it has left that state or keys still stand.
select memory.advance_erasure($1, $2, $3)

-- name: finish_erasure
-- Keeps the signed receipt and ends the erasure; no value where that was done.
select memory.finish_erasure($1, $2, $3, $4, $5)

-- name: key_pages
-- Which of these key pages the database names, and whether a memory or an open destruction still needs them.
select page, exists (select from memory.key_pages k where k.key_page = page and k.used) as used
from unnest($1::bigint[]) page
where exists (select from memory.key_pages k where k.key_page = page)
