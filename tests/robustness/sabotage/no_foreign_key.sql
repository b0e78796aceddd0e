-- A writer that forgets to number one memory in fifty. The foreign key would refuse its commit.
alter table memory.memories drop constraint memories_bank_last_seq_id_fkey;
do $do$
declare
  put text := pg_get_functiondef(
    'memory.put(text, text, text[], text[], timestamptz[], bigint[], int[], bytea[], bytea[])'::regprocedure);
  line text := '''upsert'' from unnest(won) with ordinality t(id, o);';
begin
  if position(line in put) = 0 then
    raise exception 'the line that is to be broken is not there';
  end if;
  execute replace(put, line, '''upsert'' from unnest(won) with ordinality t(id, o) where random() < 0.98;');
end $do$;
