-- free_resumed: put jobs whose task is not paused any more back into the line
--
--   $1  integer  the most jobs to put back
--
-- Locks:   the chosen rows, FOR UPDATE SKIP LOCKED; never waits
-- Index:   jobs_held
-- Returns: moved
SELECT aiopgq.free_resumed_jobs($1) AS moved
