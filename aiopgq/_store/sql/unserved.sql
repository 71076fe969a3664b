-- unserved: due jobs that no live worker would claim
--
--   $1  integer  the most jobs to look at
--
-- Locks:   none
-- Index:   none
-- Returns: queue, task, jobs, known
SELECT u.queue, u.task, u.jobs, u.known FROM aiopgq.unserved_jobs($1) AS u
