-- free_known: put held jobs of known tasks back into the line
--
--   $1  text[]   tasks
--   $2  integer  the most jobs to free
--
-- Locks:   the chosen rows, FOR UPDATE SKIP LOCKED; never waits
-- Index:   jobs_held
-- Returns: freed
SELECT aiopgq.free_known_jobs($1, $2) AS freed
