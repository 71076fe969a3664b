-- complete: move completed jobs to the archive
--
--   $1  uuid[]   ids
--   $2  uuid[]   the claim_id of each
--   $3  text[]   results, JSON, or NULL
--   $4  boolean  keep them; false deletes
--
-- Locks:   the rows, in the order of id
-- Index:   jobs_key
-- Returns: ours; one row, the ids of those that were still ours, NULL if all were
SELECT CASE WHEN count(*) < cardinality($1) THEN coalesce(array_agg(c.id), '{}') END AS ours
FROM aiopgq.complete_jobs($1, $2, $3, $4) AS c (id)
