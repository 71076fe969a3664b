-- forget_workers: delete the rows of incarnations that ended long ago
--
--   $1  float8  seconds
--
-- Locks:   the rows
-- Index:   none
-- Returns: forgotten
SELECT aiopgq.forget_workers($1) AS forgotten
