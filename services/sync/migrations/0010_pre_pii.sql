-- A bank may have personal data taken out of what is pushed, or the record refused.
alter table memory.banks add pii text not null default 'off' check (pii in ('off', 'redact', 'reject'));

create or replace view memory.bank_policies as
  select bank, layer, name, owner, archived_at is not null as archived, barrier, near_duplicates,
         near_duplicate_threshold, classification, team_memory, min_lane, publish_requires_review, created_at, pii
  from memory.banks;

-- Null leaves what stands; the bank must be there. The form without it stays for what runs during an upgrade.
create function memory.put_policy(b text, new_barrier text, duplicates text, threshold real, class text, entries boolean,
                                  lane text, review boolean, personal text) returns boolean
language plpgsql security definer set search_path = '' as $$
declare
  changed boolean := memory.put_policy(b, new_barrier, duplicates, threshold, class, entries, lane, review);
begin
  update memory.banks set pii = personal where bank = b and pii <> personal;
  return found or changed;
end $$;

revoke all on function memory.put_policy(text, text, text, real, text, boolean, text, boolean, text) from public;
grant execute on function memory.put_policy(text, text, text, real, text, boolean, text, boolean, text) to teamlore_auth;
