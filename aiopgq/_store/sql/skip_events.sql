-- skip_events: give up events that are not published yet
--
--   $1  uuid[]  event ids
--
-- Locks:   the rows, in the order of id
-- Index:   outbox_event_id
-- Returns: event_id
SELECT s.event_id FROM aiopgq.skip_events($1) AS s (event_id)
