-- job_counts: how many unfinished jobs and dead letters there are
--
-- Locks:   none
-- Index:   none
-- Returns: queue, task, status, jobs
SELECT j.queue, j.task, j.status, count(*) AS jobs FROM aiopgq.jobs j GROUP BY j.queue, j.task, j.status
UNION ALL
SELECT d.queue, d.task, 'failed', count(*) FROM aiopgq.dead_letters d GROUP BY d.queue, d.task
