-- make_partitions: make the days of the archive that are missing
--
--   $1  integer  days ahead
--
-- Locks:   the archive, SHARE UPDATE EXCLUSIVE, while a day is attached
-- Index:   none
-- Returns: made
SELECT aiopgq.make_partitions($1) AS made
