-- A push in one statement: memories, digest, quota and the audit row commit together, or none of them.
create function memory.push(b text, who text, ids text[], fact_types text[], occurred timestamptz[], pages bigint[],
                            slots int[], sealeds bytea[], tags bytea[], quota boolean, call uuid, audit_name text,
                            caller text, token text)
returns text[] language plpgsql security definer set search_path = '' as $$
declare
  won text[];
begin
  select coalesce(array_agg(stored_id), '{}') into won
  from memory.put(b, who, ids, fact_types, occurred, pages, slots, sealeds, tags);
  if cardinality(won) > 0 then
    if quota then
      -- After the head, as everywhere: who waits here holds nothing that its holder needs.
      perform memory.count_records(who, cardinality(won));
    end if;
    perform compliance.record_call(call, audit_name, caller, token, b, cardinality(won));
  end if;
  return won;
end $$;

revoke all on function memory.push from public;
grant execute on function memory.push to teamlore_sync;
