-- Every access decision, counted: who (as a number), which method, why, on which bank, how often in a minute.
create table compliance.decisions (
  minute timestamptz not null,
  service text not null,
  method text not null,
  name text not null check (name in ('access.granted', 'access.denied')),
  -- All zeros: nobody who could be told.
  principal_ref uuid not null,
  token_id text not null,
  -- Why it was denied; empty where it was granted.
  reason text not null,
  bank text not null,
  count bigint not null check (count > 0),
  primary key (minute, service, method, principal_ref, token_id, reason, bank)
);

-- Adds a batch in one statement. The id of a PRIVATE bank is its owner's name, so the row holds the owner's number.
create function compliance.count_decisions(of_service text, minutes timestamptz[], methods text[], who text[],
                                           tokens text[], reasons text[], banks text[], counts bigint[]) returns void
language plpgsql security definer set search_path = '' as $$
declare
  one text;
begin
  -- In order, as the rows below: two processes that meet the same new names do not wait for each other in a ring.
  for one in
    select n from unnest(who) n where n <> '' union
    select substr(b, 9) from unnest(banks) b where b ~ '^private:(user|agent|service):[A-Za-z0-9._@-]{1,100}$'
    order by 1
  loop
    perform compliance.ref_of(one);
  end loop;
  insert into compliance.decisions as d (minute, service, method, name, principal_ref, token_id, reason, bank, count)
  select u.minute, of_service, u.method, case when u.reason = '' then 'access.granted' else 'access.denied' end,
         case when u.principal = '' then '00000000-0000-0000-0000-000000000000' else compliance.ref_of(u.principal) end,
         u.token, u.reason,
         case when u.bank ~ '^private:(user|agent|service):[A-Za-z0-9._@-]{1,100}$'
              then 'private:' || compliance.ref_of(substr(u.bank, 9))
              when u.bank like 'private:%' then 'private:' else u.bank end as safe,
         sum(u.times)
  from unnest(minutes, methods, who, tokens, reasons, banks, counts) u(minute, method, principal, token, reason, bank, times)
  group by 1, 2, 3, 4, 5, 6, 7, 8
  order by 1, 2, 3, 5, 6, 7, 8
  on conflict (minute, service, method, principal_ref, token_id, reason, bank)
  do update set count = d.count + excluded.count;
end $$;

revoke all on function compliance.count_decisions from public;
grant execute on function compliance.count_decisions
  to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant select on compliance.decisions to teamlore_compliance;
