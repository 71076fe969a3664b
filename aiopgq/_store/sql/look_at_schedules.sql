-- look_at_schedules: how many schedules are due, and when the next is; say which ones this worker declares
--
--   $1  text[]  names this worker declares
--   $2  text[]  names to pass over
--   $3  float8  seconds after which a schedule that no worker declares is orphaned
--
-- Locks:   rows of schedules seldom seen, FOR UPDATE SKIP LOCKED; never waits
-- Index:   none
-- Returns: due, next_in
SELECT l.due, l.next_in FROM aiopgq.look_at_schedules($1, $2, $3) AS l
