-- free_events: put events back that wait for no other any more
--
--   $1  uuid     the relay
--   $2  integer  the most to free
--
-- Locks:   the rows, in the order of id
-- Index:   outbox_held
-- Returns: free_events
SELECT aiopgq.free_events($1, $2) AS free_events
