-- What a store without the head lock would do: numbers from a sequence of the bank, taken early and committed late.
create sequence memory.sabotage;
create or replace function memory.put(b text, who text, ids text[], fact_types text[], occurred timestamptz[],
                                      pages bigint[], slots int[], sealeds bytea[])
returns table (stored_id text, stored_seq bigint) language plpgsql security definer as $$
declare
  i int;
  s bigint;
begin
  for i in 1 .. cardinality(ids) loop
    insert into memory.memory_ids values (ids[i], b);
    s := nextval('memory.sabotage');
    perform pg_sleep(random() * 0.004);
    insert into memory.changes (bank, seq, memory_id, kind) values (b, s, ids[i], 'upsert');
    insert into memory.memories (bank, id, author, key_page, key_slot, sealed, last_seq)
    values (b, ids[i], who, pages[i], slots[i], sealeds[i], s);
    stored_id := ids[i];
    stored_seq := s;
    return next;
  end loop;
end $$;
create or replace function memory.add_to_digest(b text, ids text[], seqs bigint[]) returns void language sql as $$ select $$;
