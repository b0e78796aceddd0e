-- name: record_model
-- Notes by which model the vectors are made, once.
insert into index.models (collection, model, revision, dimension) values ($1, $2, $3, $4) on conflict do nothing

-- name: model
-- By which model the vectors of a collection are made.
select model, revision, dimension from index.models where collection = $1

-- name: start_over
-- Follows every bank from its beginning, because the collection is gone.
update index.cursors set seq = 0 where seq > 0

-- name: behind
-- Banks that have changes the index has not followed.
select h.bank from memory.bank_heads h left join index.cursors c on c.bank = h.bank
where h.head > coalesce(c.seq, 0) order by h.bank limit 1000

-- name: make_cursor
-- The bank's cursor, where it has none.
insert into index.cursors (bank) values ($1) on conflict do nothing

-- name: claim
-- Takes a bank that is behind for as long as the transaction lasts; no row where another replica or an erasure has it.
select cursors.seq, h.head from index.cursors join memory.bank_heads h on h.bank = cursors.bank
where cursors.bank = $1 and h.head > cursors.seq for update of cursors skip locked

-- name: hold
-- Takes a bank away from all followers, waiting for the one that has it.
select seq from index.cursors where bank = $1 for update

-- name: save
-- Notes how far a bank was followed.
update index.cursors set seq = $2 where bank = $1

-- name: page
-- One page of changes after a seq, then the memories they belong to; superseded steps carry no memory.
with page as materialized (
  select seq, memory_id, kind from memory.change_log where bank = $1 and seq > $2 order by seq limit $3)
select p.seq, p.memory_id, p.kind, m.lane, m.derivation, m.key_page, m.key_slot, m.sealed
from page p left join memory.live_memories m on m.bank = $1 and m.id = p.memory_id and m.last_seq = p.seq
order by p.seq

-- name: live
-- Which of these memories are live now.
select id from memory.live_memories where bank = $1 and id = any ($2)

-- name: texts
-- What opens the texts of those of these memories that are live now.
select id, key_page, key_slot, sealed from memory.live_memories where bank = $1 and id = any ($2)

-- name: memories
-- What a hit shows of these memories, in one snapshot; a lane below the bank's least shows nothing.
select m.id, m.author, m.lane, m.key_page, m.key_slot, m.sealed
from memory.live_memories m join memory.bank_policies p on p.bank = m.bank
where m.bank = $1 and m.id = any ($2) and array_position('{synced,capture,entry}', m.lane)
  >= array_position('{synced,capture,entry}', p.min_lane)

-- name: min_lane
-- The least lane that a bank serves; no row for a bank that is not there.
select min_lane from memory.bank_policies where bank = $1

-- name: note_purged
-- Notes the memories that an erasure was purged of; a row per memory that was not noted before.
insert into index.purged (erasure_id, memory_id) select $1, id from unnest($2::text[]) id
on conflict do nothing returning memory_id
