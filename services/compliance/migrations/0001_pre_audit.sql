-- One row for each state-changing call, in the same commit as what it changed. Rows hold no text and no names: the
-- table of names is apart, so that an erasure breaks no chain.
create schema compliance;

create table compliance.principals (
  principal_ref uuid primary key default gen_random_uuid(),
  principal text not null unique
);

create table compliance.audit_calls (
  audit_id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  call_id uuid not null,
  name text not null,
  principal_ref uuid not null,
  token_id text not null,
  bank text not null,
  objects int not null,
  -- The chain: number within the bank, the hash before, the hash of this row.
  chain_seq bigint,
  previous_hash bytea,
  row_hash bytea
);
create index audit_calls_bank on compliance.audit_calls (bank, audit_id);

-- The random number of a name, made when first asked for.
create function compliance.ref_of(who text) returns uuid language plpgsql set search_path = '' as $$
declare
  ref uuid;
begin
  select principal_ref into ref from compliance.principals where principal = who;
  if ref is null then
    insert into compliance.principals (principal) values (who) on conflict do nothing;
    select principal_ref into ref from compliance.principals where principal = who;
  end if;
  return ref;
end $$;

-- The id of a PRIVATE bank is its owner's name, so the row holds the owner's number instead.
create function compliance.record_call(call uuid, audit_name text, who text, token text, b text, n int) returns void
language sql security definer set search_path = '' as $$
  insert into compliance.audit_calls (call_id, name, principal_ref, token_id, bank, objects)
  values (call, audit_name, compliance.ref_of(who), token,
          case when b like 'private:%' then 'private:' || compliance.ref_of(substr(b, 9)) else b end, n)
$$;

revoke all on all functions in schema compliance from public;
grant usage on schema compliance to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant execute on function compliance.record_call
  to teamlore_auth, teamlore_sync, teamlore_feed, teamlore_compliance, teamlore_index;
grant select on compliance.audit_calls, compliance.principals to teamlore_compliance;
