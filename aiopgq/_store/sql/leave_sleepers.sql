-- leave_sleepers: take down the flags of a worker that goes, and wake those who sleep by them
--
--   $1  integer[]  slots
--   $2  bigint[]   the value this worker gave each flag
--   $3  text[]     a queue of each slot
--
-- Locks:   an advisory lock per flag, for the statement
-- Index:   none
-- Returns: leave_sleepers
SELECT aiopgq.leave_sleepers($1, $2, $3) AS leave_sleepers
