-- The team's copy: banks, memories, their numbered changes, tombstones, holds and erasures.
-- Everything is written through the functions of 0002; no role may touch the tables directly.
create schema memory;

create table memory.history (
  single boolean primary key default true check (single),
  epoch bigint not null default 1
);
insert into memory.history default values;

create table memory.banks (
  bank text primary key check (bank ~ '^[A-Za-z0-9._:@-]{1,255}$'),
  layer text not null check (layer in ('system', 'team', 'client', 'private')),
  team_id text,
  client_id text,
  user_id text,
  classification text not null default 'internal'
    check (classification in ('public', 'internal', 'confidential', 'restricted')),
  near_duplicates text not null default 'skip' check (near_duplicates in ('skip', 'warn', 'off')),
  near_duplicate_threshold real not null default 0.95 check (near_duplicate_threshold between 0.5 and 1),
  created_at timestamptz not null default now(),
  constraint scope_of_layer check (
    (layer = 'system' and team_id is null and client_id is null and user_id is null) or
    (layer = 'team' and client_id is null and user_id is null) or
    (layer = 'client' and team_id is not null and client_id is not null and user_id is null) or
    (layer = 'private' and team_id is null and client_id is null and user_id is not null))
);

-- One row a bank, locked by the writer until it commits: order of seq is order of commit, and numbers are dense.
create table memory.heads (
  bank text primary key references memory.banks,
  head bigint not null default 0,
  live bigint not null default 0,
  digest numeric(20, 0) not null default 0,
  horizon bigint not null default 0,
  horizon_nonce bigint not null default 0
) with (fillfactor = 20);

-- Ids are global, so that the same id never names two memories; the large tables are keyed by bank.
create table memory.memory_ids (
  id text primary key,
  bank text not null
);

create table memory.changes (
  bank text not null,
  seq bigint not null,
  memory_id text not null,
  kind text not null check (kind in ('upsert', 'status', 'forget', 'erase')),
  nonce bigint not null default (random() * 9e18)::bigint,
  changed_at timestamptz not null default clock_timestamp(),
  primary key (bank, seq),
  unique (bank, seq, memory_id)
);

create table memory.memories (
  bank text not null,
  id text not null,
  author text not null,
  lane text not null default 'synced' check (lane in ('synced', 'entry', 'capture')),
  derivation text not null default 'fact' check (derivation in ('fact', 'observation', 'model')),
  fact_type text not null default '',
  status text not null default 'current' check (status in ('current', 'suspect', 'contradicted', 'superseded')),
  version int not null default 1,
  forgotten boolean not null default false,
  occurred_at timestamptz,
  retained_at timestamptz not null default clock_timestamp(),
  key_page bigint not null,
  key_slot int not null,
  sealed bytea not null,
  last_seq bigint not null,
  primary key (bank, id),
  unique (key_page, key_slot),
  foreign key (bank, last_seq, id) references memory.changes (bank, seq, memory_id) deferrable initially deferred
);
create index memories_author on memory.memories (author, bank);

create table memory.tombstones (
  bank text not null,
  id text not null,
  last_seq bigint not null,
  primary key (bank, id),
  foreign key (bank, last_seq, id) references memory.changes (bank, seq, memory_id) deferrable initially deferred
);

create table memory.holds (
  hold_id text primary key,
  bank text not null,
  matter text not null,
  placed_by text not null,
  placed_at timestamptz not null default clock_timestamp(),
  review_at timestamptz,
  lifted_by text,
  lifted_at timestamptz
);
create index holds_binding on memory.holds (bank) where lifted_at is null;

-- Every object a person has a part in, so that a subject's trail can be followed.
create table memory.subject_links (
  principal text not null,
  kind text not null,
  bank text not null,
  object_id text not null,
  role text not null,
  primary key (principal, kind, bank, object_id, role)
);
create index subject_links_object on memory.subject_links (bank, object_id);

create table memory.erasures (
  erasure_id text primary key,
  bank text not null,
  state text not null default 'hidden' check (state in ('hidden', 'keys_destroyed', 'index_purged', 'server_done')),
  requested_by text not null,
  requested_at timestamptz not null default clock_timestamp(),
  hidden_at timestamptz not null default clock_timestamp(),
  keys_destroyed_at timestamptz,
  index_purged_at timestamptz,
  server_done_at timestamptz,
  through_seq bigint not null,
  statement bytea,
  signature bytea,
  public_key bytea
);
create index erasures_open on memory.erasures (requested_at) where state <> 'server_done';

-- Which key slots must be zero: written with the tombstone, marked done once the key store says so.
create table memory.key_destructions (
  bank text not null,
  id text not null,
  erasure_id text not null references memory.erasures,
  key_page bigint not null,
  key_slot int not null,
  done_at timestamptz,
  primary key (bank, id)
);
create index key_destructions_erasure on memory.key_destructions (erasure_id);

-- One device's copy of a bank.
create table memory.mirrors (
  bank text not null,
  device_id text not null,
  principal text not null,
  registered_at timestamptz not null default clock_timestamp(),
  last_seen_at timestamptz not null default clock_timestamp(),
  acked_seq bigint not null default 0,
  primary key (bank, device_id)
);
create index mirrors_device on memory.mirrors (device_id);

-- The guard is declared: an update moves nothing and comes with a change of its own, a deletion with a tombstone.
create function memory.check_growth() returns trigger language plpgsql as $$
begin
  if new.bank <> old.bank or new.id <> old.id then
    raise exception 'bank and id of a memory are immutable' using errcode = '23514';
  end if;
  if new.last_seq <= old.last_seq then
    raise exception 'a memory changed without a change' using errcode = '23514';
  end if;
  return new;
end $$;
create trigger memory_grows before update on memory.memories for each row execute function memory.check_growth();

create function memory.check_buried() returns trigger language plpgsql as $$
begin
  if not exists (select 1 from memory.tombstones where bank = old.bank and id = old.id) then
    raise exception 'a memory left without a tombstone' using errcode = '23514';
  end if;
  return null;
end $$;
create constraint trigger memory_buried after delete on memory.memories
  deferrable initially deferred for each row execute function memory.check_buried();

create function memory.refuse_truncate() returns trigger language plpgsql as $$
begin
  raise exception 'memories, changes and tombstones are never truncated' using errcode = '23514';
end $$;
create trigger memories_stay before truncate on memory.memories execute function memory.refuse_truncate();
create trigger changes_stay before truncate on memory.changes execute function memory.refuse_truncate();
create trigger tombstones_stay before truncate on memory.tombstones execute function memory.refuse_truncate();
