-- next_events: the next events in line
--
--   $1  bigint[]  the highest id to read of each shard, 0 to 255
--   $2  bigint    read only beyond this id
--   $3  integer   the most to read
--   $4  bigint    about how many bytes of payload to read
--
-- Locks:   none
-- Index:   outbox_line, outbox_held
-- Returns: id, shard, blocked, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, attempts
SELECT e.id, e.shard, e.blocked, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers, e.created_at, e.attempts
FROM aiopgq.next_events($1, $2, $3, $4) AS e
