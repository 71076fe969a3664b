-- reclaim: read again what a claim took whose answer was lost
--
--   $1  uuid  the worker's incarnation
--   $2  uuid  claim_id of that batch
--
-- Locks:   none
-- Index:   jobs_worker
-- Returns: id, queue, task, priority, place, args, headers, attempts, max_attempts, timeout, created; in no order
SELECT j.id, j.queue, j.task, j.priority, j.place, j.args::text AS args, j.headers::text AS headers,
    j.attempts, j.max_attempts, j.timeout, date_part('epoch', j.created_at) AS created
FROM aiopgq.jobs j
WHERE j.worker_id = $1 AND j.claim_id = $2
