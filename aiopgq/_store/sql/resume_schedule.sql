-- resume_schedule: let a paused schedule fire again, from now on
--
--   $1  text  name
--
-- Locks:   the row of the schedule
-- Index:   schedules_key
-- Returns: name
UPDATE aiopgq.schedules s
SET
    paused_at = NULL,
    next_at = CASE WHEN s.paused_at IS NULL THEN s.next_at END,
    since = CASE WHEN s.paused_at IS NULL THEN s.since ELSE clock_timestamp() END
WHERE s.name = $1
RETURNING s.name
