-- outbox_events: list events, oldest first
--
--   $1  text     status; NULL: any
--   $2  text     aggregate type; NULL: any
--   $3  text     aggregate id; NULL: any
--   $4  integer  the most to list
--
-- Locks:   none
-- Index:   outbox_key
-- Returns: id, event_id, status, aggregate_type, aggregate_id, event_type, payload, headers, created_at, published_at, retry_at, attempts, last_error
SELECT e.id, e.event_id, e.status, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers, e.created_at, e.published_at, e.retry_at, e.attempts, e.last_error
FROM aiopgq.outbox_events($1, $2, $3, $4) AS e
