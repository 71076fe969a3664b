-- job_status: where a job stands, for one who waits for its result
--
--   $1  uuid  id
--
-- Locks:   none
-- Index:   jobs_key, archive_key, dead_letters_key
-- Returns: status, result, last_error, errors
SELECT a.status, a.result::text AS result, a.last_error, a.errors::text AS errors
FROM aiopgq.all_jobs a
WHERE a.id = $1
