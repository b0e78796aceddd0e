-- name: bank_policy
-- How a bank treats what is pushed; no row for a bank that is not there.
select near_duplicates, near_duplicate_threshold, barrier, archived, pii from memory.bank_policies where bank = $1

-- name: stored_today
-- How many records a principal stored on this day (UTC), and how many seconds are left of it.
select coalesce((select records from memory.quota_use
                 where principal = $1 and day = (now() at time zone 'utc')::date), 0) as records,
       extract(epoch from ((now() at time zone 'utc')::date + 1) - (now() at time zone 'utc')) as rest_of_day

-- name: count_records
-- Adds to what a principal stored today.
select memory.count_records($1, $2)

-- name: open_bank
-- Makes the bank's row and head for its first writer, who owns it; true when this call made them.
select memory.open_bank($1, $2)

-- name: lookup_ids
-- What each id is now, in any bank; a row per known id.
select i.id, i.bank, m.id is not null and not m.forgotten as live, m.fact_type, m.occurred_at, m.key_page, m.key_slot,
       m.sealed
from memory.memory_ids i left join memory.memories m on m.bank = i.bank and m.id = i.id
where i.id = any ($1)

-- name: put
-- Stores new memories of one author in one bank; a row per id that was won.
select stored_id, stored_seq from memory.put($1, $2, $3, $4, $5, $6, $7, $8)

-- name: add_to_digest
-- Adds the terms of memories just stored to the bank's digest.
select memory.add_to_digest($1, $2, $3)

-- name: forget
-- Hides memories; answers how many.
select memory.forget($1, $2)

-- name: erase
-- Buries memories and writes down which keys must go.
select deleted, erased, through from memory.erase($1, $2, $3, $4)

-- name: keys_to_destroy
-- The key slots of an erasure that are not destroyed yet; none before the destruction has begun, past all holds.
select id, key_page, key_slot from memory.doomed_keys where erasure_id = $1 and bank = $2 and id = any ($3)

-- name: finish_key_destruction
-- Marks keys as destroyed; answers how many were open.
select memory.finish_key_destruction($1, $2)
