-- fall_asleep: raise the flags that ask producers for notifications
--
--   $1  integer[]  slots of the queues served
--   $2  bigint[]   the flags as this worker last left them
--   $3  float8     seconds it will sleep
--
-- Locks:   an advisory lock per flag, for the statement
-- Index:   none
-- Returns: flags, unbroken, horizon
SELECT f.flags, f.unbroken, f.horizon FROM aiopgq.fall_asleep($1, $2, $3) AS f
