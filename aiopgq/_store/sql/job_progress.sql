-- job_progress: how far jobs are, for those who watch them
--
--   $1  uuid[]  ids
--
-- Locks:   none
-- Index:   jobs_key, archive_key, dead_letters_key
-- Returns: id, status, progress, current_stage, events_count, attempts
SELECT a.id, a.status, a.progress, a.current_stage, a.events_count, a.attempts
FROM aiopgq.all_jobs a
WHERE a.id = ANY ($1)
