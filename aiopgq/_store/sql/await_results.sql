-- await_results: ask for notifications of finished jobs
--
--   $1  float8  seconds they are wanted
--
-- Locks:   an advisory lock, for the statement
-- Index:   none
-- Returns: await_results
SELECT aiopgq.await_results($1) AS await_results
