-- How far the leading terms of each bank are followed. Terms of an earlier version lie in a collection of their own, and a
-- replica of that version goes on with them and with `term_cursors` until it ends.
create table index.leading_term_cursors (
  bank text primary key,
  seq bigint not null default 0
);
grant select, insert, update on index.leading_term_cursors to teamlore_index;
