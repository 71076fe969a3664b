-- begin_run: tell by a lock whose transaction this is
--
--   $1  uuid  the job
--   $2  uuid  its claim_id
--
-- Locks:   an advisory lock of the run, until the transaction ends
-- Index:   jobs_key
-- Returns: ours; false if the job belongs to somebody else already
SELECT aiopgq.begin_run($1, $2) AS ours
