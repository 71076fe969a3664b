-- wake_up: lower flags that still hold the value this worker gave them
--
--   $1  integer[]  slots
--   $2  bigint[]   the value each was given
--
-- Locks:   an advisory lock per flag, for the statement
-- Index:   none
-- Returns: slot
SELECT f.slot FROM unnest($1::integer[], $2::bigint[]) AS f (slot, flag), aiopgq.wake_up(f.slot, f.flag)
