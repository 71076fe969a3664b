-- enqueued: the pending jobs of a task, in the order they were enqueued
--
--   $1  text[]  the names of the task
--
-- Locks:   none
-- Index:   none
-- Returns: id, task, queue, priority, run_at, args, headers
SELECT j.id, j.task, j.queue, j.priority, j.run_at, j.args::text AS args, j.headers::text AS headers
FROM aiopgq.jobs j
WHERE j.status = 'pending' AND j.task = ANY ($1::text[])
ORDER BY j.created_at, j.id
