-- How far the terms of each bank are followed; they run ahead of the vectors, which take the model its time.
create table index.term_cursors (
  bank text primary key,
  seq bigint not null default 0
);
grant select, insert, update on index.term_cursors to teamlore_index;
