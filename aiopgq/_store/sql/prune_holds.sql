-- prune_holds: forget the unique keys whose period is over
--
--   $1  integer  the most to forget
--
-- Locks:   the rows, none that somebody else has locked
-- Index:   unique_holds_until
-- Returns: pruned
SELECT aiopgq.prune_holds($1) AS pruned
