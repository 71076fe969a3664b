-- prune_inbox: delete a batch of messages that were received before the window, oldest first
--
--   $1  float8       the window in seconds
--   $2  timestamptz  where the batch before ended
--   $3  integer      the most to delete
--
-- Locks:   the rows, past those that others have locked
-- Index:   inbox_received
-- Returns: pruned, up_to
SELECT p.pruned, p.up_to FROM aiopgq.prune_inbox($1, $2, $3) AS p
