-- still_claimed: see whether a run still owns its job, when the transaction that may have settled it has ended
--
--   $1  uuid     the job
--   $2  uuid     its claim_id
--   $3  boolean  terminate the backend that still holds the transaction
--
-- Locks:   its row, waited for a second at most
-- Index:   jobs_key
-- Returns: ours
SELECT aiopgq.still_claimed($1, $2, $3) AS ours
