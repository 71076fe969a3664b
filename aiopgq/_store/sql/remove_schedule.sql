-- remove_schedule: delete a schedule; its jobs stay
--
--   $1  text  name
--
-- Locks:   the row of the schedule
-- Index:   schedules_key
-- Returns: name
DELETE FROM aiopgq.schedules s WHERE s.name = $1 RETURNING s.name
