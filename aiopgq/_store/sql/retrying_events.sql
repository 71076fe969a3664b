-- retrying_events: events that failed, those that are due first
--
--   $1  uuid     the relay
--   $2  integer  the most to read
--
-- Locks:   none
-- Index:   outbox_retry
-- Returns: id, shard, wait, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, attempts
SELECT e.id, e.shard, e.wait, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers, e.created_at, e.attempts
FROM aiopgq.retrying_events($1, $2) AS e
