-- How far the index has followed each bank, and by which model its vectors were made.
create schema index;

create table index.models (
  collection text primary key,
  model text not null,
  revision text not null,
  dimension int not null
);

create table index.cursors (
  bank text primary key,
  seq bigint not null default 0
);

grant usage on schema index to teamlore_index;
grant select, insert, update on index.models, index.cursors to teamlore_index;
grant select on memory.change_log to teamlore_index;
