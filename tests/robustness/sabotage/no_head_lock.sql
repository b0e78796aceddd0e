-- What a store without the head lock would do: numbers from a sequence of the bank, taken early and committed late. The
-- head follows at commit, so that no writer waits for another.
create function memory.take(b text, n int) returns bigint language plpgsql security definer as $$
declare
  top bigint;
begin
  perform pg_advisory_lock(hashtext(b));
  top := nextval(format('memory.%I', 'sabotage ' || b)) - 1;
  if n > 0 then
    perform setval(format('memory.%I', 'sabotage ' || b), top + n);
  else
    perform setval(format('memory.%I', 'sabotage ' || b), top + 1, false);
  end if;
  perform pg_advisory_unlock(hashtext(b));
  return top;
end $$;
do $do$
declare
  r record;
  put text := pg_get_functiondef(
    'memory.put(text, text, text[], text[], timestamptz[], bigint[], int[], bytea[], bytea[])'::regprocedure);
begin
  for r in select bank, head from memory.heads loop
    execute format('create sequence memory.%I start with %s', 'sabotage ' || r.bank, r.head + 1);
  end loop;
  if put !~ 'select head into base from memory.heads where bank = b for update;' then
    raise exception 'the line that is to be broken is not there';
  end if;
  execute regexp_replace(put, 'select head into base .*?where bank = b;', 'base := memory.take(b, cardinality(won));');
  for r in select pg_get_functiondef(oid) as text from pg_proc
           where pronamespace = 'memory'::regnamespace and proname in ('hide', 'erase', 'status') loop
    execute regexp_replace(r.text, 'update memory.heads set head = top \+ ([^,]*),',
      'top := memory.take(b, \1); update memory.heads set head = greatest(head, top + \1),');
  end loop;
end $do$;
create function memory.sabotage() returns trigger language plpgsql security definer as $$
begin
  if new.kind = 'upsert' then
    update memory.heads set head = greatest(head, new.seq), live = live + 1,
      digest = memory.digest_sum(digest, memory.digest_term(new.memory_id, new.seq)) where bank = new.bank;
  end if;
  return null;
end $$;
create constraint trigger sabotage after insert on memory.changes deferrable initially deferred
  for each row execute function memory.sabotage();
