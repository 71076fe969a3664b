-- pause_task: let no job of a task be claimed
--
--   $1  text  the task
--
-- Locks:   the row of the pause
-- Index:   paused_tasks_key
-- Returns: changed; false if it was paused
SELECT aiopgq.pause_task($1) AS changed
