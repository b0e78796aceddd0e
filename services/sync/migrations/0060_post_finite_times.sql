-- The first and the last moment of the calendar were once stored as infinities, which no Timestamp can hold. They are set
-- right where they stand: no mirror could take such a page, so that there is nothing to tell it anew.
do $$
declare
  banks text[];
  ids text[];
begin
  select array_agg(bank), array_agg(id) into banks, ids from memory.memories
  where not isfinite(occurred_at) or not isfinite(last_verified);
  if ids is not null then
    alter table memory.memories disable trigger memory_grows;
    update memory.memories m
    set occurred_at = greatest(least(occurred_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z'),
        last_verified = greatest(least(last_verified, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    from unnest(banks, ids) endless(bank, id) where m.bank = endless.bank and m.id = endless.id;
    alter table memory.memories enable trigger memory_grows;
  end if;
end $$;

-- Not validated: that would hold up all writers for a look at all rows, which the above has just taken.
alter table memory.memories
  add constraint finite_times check (isfinite(occurred_at) and isfinite(last_verified)) not valid;
