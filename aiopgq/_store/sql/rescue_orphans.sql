-- rescue_orphans: take the jobs of incarnations that are dead or unknown
--
--   $1  boolean  keep jobs whose cancel was requested in the archive
--
-- Locks:   an advisory lock, tried; the jobs in the order of id
-- Index:   jobs_worker
-- Returns: taken
SELECT aiopgq.rescue_orphans($1) AS taken
