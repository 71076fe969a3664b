-- paused_tasks: list the tasks that are paused
--
-- Locks:   none
-- Index:   none
-- Returns: name, paused_at
SELECT t.name, t.paused_at FROM aiopgq.paused_tasks t ORDER BY t.name
