-- job_info: all that is known of a job
--
--   $1  uuid  id
--
-- Locks:   none
-- Index:   jobs_key, archive_key, dead_letters_key
-- Returns: id, queue, task, status, priority, attempts, max_attempts, created_at, run_at, claimed_at, started_at, finished_at, worker_id, progress, current_stage, events_count, held, cancel_requested, args, headers, result, last_error, errors
SELECT a.id, a.queue, a.task, a.status, a.priority, a.attempts, a.max_attempts, a.created_at, a.run_at,
    a.claimed_at, a.started_at, a.finished_at, a.worker_id, a.progress, a.current_stage, a.events_count,
    a.held, a.cancel_requested, a.args::text AS args, a.headers::text AS headers, a.result::text AS result,
    a.last_error, a.errors::text AS errors
FROM aiopgq.all_jobs a
WHERE a.id = $1
