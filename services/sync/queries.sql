-- name: ground
-- What a push meets: those of the ids that are known anywhere, and the bank's policy; nulls for a bank that is not there.
select array(select id from memory.memory_ids where id = any ($2)) as known, p.bank, p.near_duplicates,
       p.near_duplicate_threshold, p.barrier, p.archived, p.pii
from (values (1)) one left join memory.bank_policies p on p.bank = $1

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
-- What each id is now, in any bank; a row per known id. One that bank $1 has buried is that bank's, whoever else has it.
select i.id, case when t.id is null then i.bank else $1 end as bank,
       m.id is not null and not m.forgotten and t.id is null as live, m.fact_type, m.occurred_at, m.key_page, m.key_slot,
       m.sealed
from memory.memory_ids i left join memory.memories m on m.bank = i.bank and m.id = i.id
  left join memory.tombstones t on t.bank = $1 and t.id = i.id
where i.id = any ($2)

-- name: put
-- Stores new memories of one author in one bank; a row per id that was won, without a seq for one that is buried at once.
select stored_id, stored_seq from memory.put($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: push
-- Stores new memories and writes the call's audit row; answers the ids that were won.
select memory.push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)

-- name: forget
-- Hides memories and buries ids that were never seen; answers how many of each.
select deleted, buried from memory.hide($1, $2)

-- name: erase
-- Buries memories and writes down which keys must go.
select deleted, erased, buried from memory.erase($1, $2, $3, $4)

-- name: status
-- Changes a memory's standing by compare-and-set; no row for one that is not live in the bank.
select outcome, now_version, now_seq from memory.status($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: live_by_id
-- Live memories of a bank by their ids.
select id, author, lane, derivation, fact_type, status, version, occurred_at, retained_at, key_page, key_slot, sealed,
       last_seq, trust, may_be_stale, superseded_by, last_verified
from memory.live_memories where bank = $1 and id = any ($2) order by id

-- name: recalled_ids
-- Which of these memories are recalled in the bank now: live, and not held to be wrong or outdated.
select id from memory.live_memories where bank = $1 and id = any ($2) and status in ('current', 'suspect')

-- name: together
-- Live memories of a bank that go when these ids are forgotten: themselves first, then the other chunks of their retains.
select id from memory.live_memories where bank = $1 and id = any (memory.together($1, $2))
order by id <> all ($2), id limit 1000

-- name: keys_to_destroy
-- The key slots of an erasure that are not destroyed yet; none before the destruction has begun, past all holds.
select id, key_page, key_slot from memory.doomed_keys where erasure_id = $1 and bank = $2 and id = any ($3)

-- name: finish_key_destruction
-- Marks keys as destroyed; answers how many were open.
select memory.finish_key_destruction($1, $2)

-- name: banks_to_trim
-- One page of banks that have, or may get, a horizon.
select bank from memory.heads where bank > $1 and head > 0 order by bank limit 1000

-- name: raise_horizon
-- Passes over what is old, followed and confirmed; `was` is null for an absent bank.
select was, now_at, waits_for from memory.raise_horizon($1, $2, $3)

-- name: trim
-- Takes away dead changes of the next $3 ones below the horizon; `through` is null at the end.
select through, removed from memory.trim($1, $2, $3)
