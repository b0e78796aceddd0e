-- Which key pages are named here, for the sweep that drops those which nothing needs. Whatever seals under a key page
-- must stand in this view before it does.
create index key_destructions_page on memory.key_destructions (key_page);
create view memory.key_pages as
  select key_page, true as used from memory.memories
  union all
  select key_page, done_at is null from memory.key_destructions;
grant select on memory.key_pages to teamlore_compliance;
