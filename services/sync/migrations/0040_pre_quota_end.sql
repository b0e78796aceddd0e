-- Old counts of stored records, which name principals, leave by this alone; a quota looks at today's.
create function memory.sweep_quota_use(days int, most int) returns int
language plpgsql security definer set search_path = '' as $$
declare
  swept int;
begin
  delete from memory.quota_use where ctid = any (array(
    select ctid from memory.quota_use
    where day < (clock_timestamp() at time zone 'utc')::date - greatest(days, 31) limit most for update skip locked));
  get diagnostics swept = row_count;
  return swept;
end $$;
revoke all on function memory.sweep_quota_use from public;
grant execute on function memory.sweep_quota_use to teamlore_auth;
