-- count_ready: how many jobs of a queue are in line, up to a limit
--
--   $1  text     the queue
--   $2  integer  count no further
--
-- Locks:   none
-- Index:   jobs_line
-- Returns: ready
SELECT aiopgq.count_ready($1, $2) AS ready
