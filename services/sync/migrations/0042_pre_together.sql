-- Who is about to forget may look first at what goes together; the rule stays the one that forget itself follows.
grant execute on function memory.together to teamlore_sync;
