-- retire_worker: say that an incarnation has ended
--
--   $1  uuid  the incarnation
--
-- Locks:   its row
-- Index:   workers_key
-- Returns: retire_worker
SELECT aiopgq.retire_worker($1) AS retire_worker
