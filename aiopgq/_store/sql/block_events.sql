-- block_events: take events out of the line that wait for one of their aggregate
--
--   $1  uuid      the relay
--   $2  bigint[]  ids
--
-- Locks:   the rows, in the order of id
-- Index:   outbox_key
-- Returns: block_events
SELECT aiopgq.block_events($1, $2) AS block_events
