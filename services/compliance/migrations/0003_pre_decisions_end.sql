-- Old counts of access decisions leave by this alone, and never a young one: whoever holds auth's role wipes no traces.
create function compliance.sweep_decisions(days int, most int) returns int
language plpgsql security definer set search_path = '' as $$
declare
  swept int;
begin
  delete from compliance.decisions where ctid = any (array(
    select ctid from compliance.decisions
    where minute < clock_timestamp() - make_interval(days => greatest(days, 31)) limit most for update skip locked));
  get diagnostics swept = row_count;
  return swept;
end $$;
revoke all on function compliance.sweep_decisions from public;
grant execute on function compliance.sweep_decisions to teamlore_auth;
