-- Which memories each erasure was purged of, so that the call that did it leaves one audit row and its repeat none,
-- whether or not the follower had taken the vectors away by then.
create table index.purged (
  erasure_id text not null,
  memory_id text not null,
  primary key (erasure_id, memory_id)
);
grant select, insert on index.purged to teamlore_index;
