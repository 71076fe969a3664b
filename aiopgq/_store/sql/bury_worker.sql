-- bury_worker: declare a child process dead that its parent saw end, and take its jobs
--
--   $1  uuid     the parent
--   $2  integer  pid of the child
--   $3  boolean  keep jobs whose cancel was requested in the archive
--
-- Locks:   its rows, then its jobs in the order of id
-- Index:   jobs_worker
-- Returns: taken
SELECT aiopgq.bury_worker($1, $2, $3) AS taken
