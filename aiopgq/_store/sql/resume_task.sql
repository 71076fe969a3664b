-- resume_task: end the pause of a task
--
--   $1  text  the task
--
-- Locks:   the row of the pause
-- Index:   paused_tasks_key
-- Returns: changed; false if it was not paused
SELECT aiopgq.resume_task($1) AS changed
