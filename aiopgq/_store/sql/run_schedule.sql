-- run_schedule: enqueue a job of a schedule now
--
--   $1  text  name
--   $2  uuid  id of the job
--
-- Locks:   the new row only
-- Index:   schedules_key
-- Returns: found
SELECT aiopgq.run_schedule($1, $2) AS found
