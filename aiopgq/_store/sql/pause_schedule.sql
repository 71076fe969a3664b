-- pause_schedule: let a schedule fire no more
--
--   $1  text  name
--
-- Locks:   the row of the schedule
-- Index:   schedules_key
-- Returns: name
UPDATE aiopgq.schedules s
SET paused_at = coalesce(s.paused_at, clock_timestamp())
WHERE s.name = $1
RETURNING s.name
