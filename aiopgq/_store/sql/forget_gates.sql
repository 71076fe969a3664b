-- forget_gates: delete gates that nobody needs
--
--   $1  integer  the most to delete
--
-- Locks:   the chosen rows, FOR UPDATE SKIP LOCKED; never waits
-- Index:   jobs_outside, jobs_behind, jobs_inside
-- Returns: forgotten
SELECT aiopgq.forget_gates($1) AS forgotten
