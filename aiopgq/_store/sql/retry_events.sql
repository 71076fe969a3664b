-- retry_events: let failed events be tried again at once
--
--   $1  uuid[]  event ids; NULL: all that failed or were set aside
--
-- Locks:   the rows, in the order of id
-- Index:   outbox_event_id
-- Returns: event_id
SELECT r.event_id FROM aiopgq.retry_events($1) AS r (event_id)
