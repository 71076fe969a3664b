-- cancel_job: cancel a job from outside, pending or claimed
--
--   $1  uuid  id
--
-- Locks:   the row
-- Index:   jobs_key
-- Returns: outcome
SELECT aiopgq.cancel_job($1) AS outcome
