-- prune_events: delete events published long ago
--
--   $1  float8   seconds they are kept
--   $2  integer  the most to delete
--   $3  boolean  those that nobody published, instead
--
-- Locks:   an advisory lock; the rows, FOR UPDATE SKIP LOCKED; never waits
-- Index:   outbox_published
-- Returns: prune_events
SELECT aiopgq.prune_events($1, $2, $3) AS prune_events
