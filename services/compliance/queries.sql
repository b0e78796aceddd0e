-- name: bank_exists
-- Whether anybody has made the bank.
select exists (select from memory.bank_heads where bank = $1)

-- name: place_hold
-- Places a hold under the bank's head lock; answers when.
select memory.place_hold($1, $2, $3, $4, $5)

-- name: under_way
-- Erasures of a bank that are not done, and whether the destruction of their keys has begun.
select erasure_id, keys_begun_at is not null as begun from memory.erasures
where bank = $1 and state <> 'server_done' order by requested_at, erasure_id limit 1000

-- name: lift_hold
-- Lifts a hold of a bank; true when this call lifted it.
select memory.lift_hold($1, $2, $3)

-- name: holds
-- The holds of a bank, lifted ones included, the newest first.
select hold_id, bank, matter, placed_by, placed_at, review_at, lifted_at from memory.holds
where bank = $1 order by placed_at desc, hold_id limit 1000

-- name: erase
-- Buries memories and writes down which keys must go.
select erased, buried from memory.erase($1, $2, $3, $4, $5)

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
       e.server_done_at, e.through_seq,
       e.state = 'hidden' and e.keys_begun_at is null
         and exists (select 1 from memory.holds h where h.bank = e.bank and h.lifted_at is null) as stopped,
       array(select k.id from memory.key_destructions k
             where k.erasure_id = e.erasure_id and k.written_off order by k.id) as keys_not_found,
       e.statement, e.signature, e.public_key, now() as read_at,
       array(select k.id from memory.key_destructions k where k.erasure_id = e.erasure_id order by k.id) as memory_ids,
       array(select m.device_id from memory.mirrors m where m.bank = e.bank order by m.device_id) as devices,
       array(select m.acked_seq from memory.mirrors m where m.bank = e.bank order by m.device_id) as acked,
       array(select m.retired_at from memory.mirrors m where m.bank = e.bank order by m.device_id) as retired
from memory.erasures e where e.erasure_id = $1

-- name: begin_key_destruction
-- Begins to destroy the keys of an erasure; no value where that had begun. Refuses under a hold.
select memory.begin_key_destruction($1)

-- name: receipt_key
-- The public key that receipts are signed with; no row while there are none.
select public_key from memory.erasures where statement is not null limit 1

-- name: live
-- One page of a bank's live memories by id, with where their keys stand.
select id, key_page, key_slot, sealed from memory.live_memories where bank = $1 and id > $2 order by id limit 500

-- name: open_keys
-- Keys of a bank that are still to be destroyed, one page by id.
select id, key_page, key_slot from memory.key_destructions
where bank = $1 and id > $2 and done_at is null order by id limit 500

-- name: write_off_keys
-- Gives up keys that cannot be found; answers how many were open. Refuses under a hold.
select memory.write_off_keys($1, $2)

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

-- name: slots
-- Where the keys of these memories of an erasure stand, or stood.
select id, key_page, key_slot from memory.key_destructions where erasure_id = $1 and id = any ($2)

-- name: epoch
-- The epoch of this history.
select epoch from memory.epochs

-- name: begin_epoch
-- Lets the history begin anew; no value where its epoch is as high already.
select memory.begin_epoch($1)

-- name: erase_again
-- Applies an erasure of before the restore; no value where it is known.
select memory.erase_again($1, $2, $3, $4, $5, $6)

-- name: is_not_older
-- Whether the database knows the newest erasure ($1; empty: none) and the epoch ($2) of the key store's ledger.
select memory.is_not_older($1, $2)
