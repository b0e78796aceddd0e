-- No replica follows the terms of the earlier version any more.
drop table index.term_cursors;
