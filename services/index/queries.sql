-- name: record_model
-- Notes by which model the vectors are made, once.
insert into index.models (collection, model, revision, dimension) values ($1, $2, $3, $4) on conflict do nothing

-- name: model
-- By which model the vectors of a collection are made.
select model, revision, dimension from index.models where collection = $1

-- name: terms_start_over
-- Follows the terms of every bank from its beginning, because their collection is gone.
update index.leading_term_cursors set seq = 0 where seq > 0

-- name: terms_behind
-- Banks that have changes whose terms are not indexed.
select h.bank from memory.bank_heads h left join index.leading_term_cursors c on c.bank = h.bank
where h.head > coalesce(c.seq, 0) order by h.bank limit 1000

-- name: terms_make_cursor
-- The bank's cursor, where it has none.
insert into index.leading_term_cursors (bank) values ($1) on conflict do nothing

-- name: take_turn
-- Takes a name for this session, and lets the server end the session when it says nothing for too long.
select pg_try_advisory_lock(hashtextextended($1, 0)) from set_config('idle_session_timeout', $2, false)

-- name: end_turn
-- Gives the name back, and the session its patience.
select pg_advisory_unlock(hashtextextended($1, 0)) from set_config('idle_session_timeout', '0', false)

-- name: terms_turn
-- How far the terms of a bank were followed, and its head; no row where they are not behind.
select c.seq, h.head from index.leading_term_cursors c join memory.bank_heads h on h.bank = c.bank
where c.bank = $1 and h.head > c.seq

-- name: terms_claim
-- Lets erasures of a bank's terms wait for as long as the transaction lasts; no row where the cursor was moved.
select seq from index.leading_term_cursors where bank = $1 and seq = $2 for update

-- name: terms_settled
-- Waits for the one that has claimed a bank's terms; those who ask this do not wait for each other.
select seq from index.leading_term_cursors where bank = $1 for share

-- name: terms_save
-- Notes how far the terms of a bank were followed.
update index.leading_term_cursors set seq = $2 where bank = $1

-- name: vectors_start_over
-- Follows every bank from its beginning, because the collection is gone.
update index.cursors set seq = 0 where seq > 0

-- name: vectors_behind
-- Banks that have changes whose terms are indexed and whose vectors are not.
select t.bank from index.leading_term_cursors t left join index.cursors c on c.bank = t.bank
where t.seq > coalesce(c.seq, 0) order by t.bank limit 1000

-- name: vectors_make_cursor
-- The bank's cursor, where it has none.
insert into index.cursors (bank) values ($1) on conflict do nothing

-- name: vectors_turn
-- How far the vectors of a bank were followed, and how far its terms; no row where they are not behind those.
select c.seq, t.seq as head from index.cursors c join index.leading_term_cursors t on t.bank = c.bank
where c.bank = $1 and t.seq > c.seq

-- name: vectors_claim
-- Lets erasures of a bank's vectors wait for as long as the transaction lasts; no row where the cursor was moved.
select seq from index.cursors where bank = $1 and seq = $2 for update

-- name: vectors_settled
-- Waits for the one that has claimed a bank's vectors; those who ask this do not wait for each other.
select seq from index.cursors where bank = $1 for share

-- name: vectors_save
-- Notes how far the vectors of a bank were followed.
update index.cursors set seq = $2 where bank = $1

-- name: covered
-- Whether the terms of all that has a vector in this bank are indexed: not so just after an upgrade or a loss.
select coalesce((select seq from index.leading_term_cursors where bank = $1), 0)
    >= coalesce((select seq from index.cursors where bank = $1), 0)

-- name: page
-- One page of changes after a seq, up to another, then each one's memory by its key; superseded steps carry no memory. The
-- limit keeps the planner from joining all memories of the bank to one page of changes.
with page as materialized (
  select seq, memory_id, kind from memory.change_log where bank = $1 and seq > $2 and seq <= $3 order by seq limit $4)
select p.seq, p.memory_id, p.kind, m.lane, m.derivation, m.key_page, m.key_slot, m.sealed
from page p left join lateral (select * from memory.live_memories
                               where bank = $1 and id = p.memory_id and last_seq = p.seq limit 1) m on true
order by p.seq

-- name: live
-- Which of these memories are live now.
select id from memory.live_memories where bank = $1 and id = any ($2)

-- name: recalled
-- Which of these memories are recalled now: live, and not held to be wrong or outdated.
select id from memory.live_memories where bank = $1 and id = any ($2) and status in ('current', 'suspect')

-- name: texts
-- What opens the texts of those of these memories that are recalled now.
select id, key_page, key_slot, sealed from memory.live_memories
where bank = $1 and id = any ($2) and status in ('current', 'suspect')

-- name: memories
-- What a hit shows of these memories, in one snapshot; a lane below the bank's least shows nothing, nor does what the team
-- holds to be wrong or outdated.
select m.id, m.author, m.lane, m.key_page, m.key_slot, m.sealed
from memory.live_memories m join memory.bank_policies p on p.bank = m.bank
where m.bank = $1 and m.id = any ($2) and m.status in ('current', 'suspect')
  and array_position('{synced,capture,entry}', m.lane)
  >= array_position('{synced,capture,entry}', p.min_lane)

-- name: min_lane
-- The least lane that a bank serves; no row for a bank that is not there.
select min_lane from memory.bank_policies where bank = $1

-- name: note_purged
-- Notes the memories that an erasure was purged of; a row per memory that was not noted before.
insert into index.purged (erasure_id, memory_id) select $1, id from unnest($2::text[]) id
on conflict do nothing returning memory_id
