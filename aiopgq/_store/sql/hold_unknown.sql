-- hold_unknown: take jobs of tasks nobody knows out of the line
--
--   $1  text[]   tasks
--   $2  integer  the most jobs to hold
--
-- Locks:   the chosen rows, FOR UPDATE SKIP LOCKED; never waits
-- Index:   none
-- Returns: held
SELECT aiopgq.hold_unknown_jobs($1, $2) AS held
