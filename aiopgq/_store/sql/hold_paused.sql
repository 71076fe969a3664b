-- hold_paused: take jobs of paused tasks out of the line, and away from their limits
--
--   $1  integer  the most jobs to take
--
-- Locks:   the chosen rows, FOR UPDATE SKIP LOCKED; never waits
-- Index:   none
-- Returns: moved
SELECT aiopgq.hold_paused_jobs($1) AS moved
