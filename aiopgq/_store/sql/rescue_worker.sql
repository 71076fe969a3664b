-- rescue_worker: declare a silent incarnation dead and take its jobs
--
--   $1  uuid     the incarnation
--   $2  bigint   the beat it was seen to stand at
--   $3  boolean  keep jobs whose cancel was requested in the archive
--
-- Locks:   its row, then its jobs in the order of id
-- Index:   workers_key, jobs_worker
-- Returns: taken; NULL if it has beaten since
SELECT aiopgq.rescue_worker($1, $2, $3) AS taken
