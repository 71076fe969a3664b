-- drop_partitions: drop the days of the archive that are past the retention
--
--   $1  float8  retention in seconds
--
-- Locks:   the archive, ACCESS EXCLUSIVE, while a day is dropped
-- Index:   none
-- Returns: dropped
SELECT aiopgq.drop_partitions($1) AS dropped
