-- job_list: the newest jobs that fit the filters
--
--   $1  text         task, or NULL for any
--   $2  text         queue, or NULL for any
--   $3  text         status, or NULL for any
--   $4  timestamptz  created before, or NULL
--   $5  timestamptz  created after, or NULL
--   $6  text         a part of the last error, or NULL
--   $7  bigint       the most jobs to return
--
-- Locks:   none
-- Index:   none
-- Returns: id, queue, task, status, priority, attempts, max_attempts, created_at, run_at, claimed_at, started_at, finished_at, worker_id, progress, current_stage, events_count, held, cancel_requested, args, headers, result, last_error, errors
SELECT a.id, a.queue, a.task, a.status, a.priority, a.attempts, a.max_attempts, a.created_at, a.run_at,
    a.claimed_at, a.started_at, a.finished_at, a.worker_id, a.progress, a.current_stage, a.events_count,
    a.held, a.cancel_requested, a.args::text AS args, a.headers::text AS headers, a.result::text AS result,
    a.last_error, a.errors::text AS errors
FROM aiopgq.all_jobs a
WHERE ($1::text IS NULL OR a.task = $1)
  AND ($2::text IS NULL OR a.queue = $2)
  AND ($3::text IS NULL OR a.status = $3)
  AND ($4::timestamptz IS NULL OR a.created_at < $4)
  AND ($5::timestamptz IS NULL OR a.created_at > $5)
  AND ($6::text IS NULL OR strpos(a.last_error, $6) > 0)
ORDER BY a.id DESC
LIMIT $7
