-- due_schedules: schedules that are due by the clock of PostgreSQL, the longest due first
--
--   $1  text[]   names to pass over
--   $2  float8   seconds after which a schedule that no worker declares is orphaned
--   $3  integer  the most to return
--
-- Locks:   none
-- Index:   none
-- Returns: name, cron, every, timezone, misfire, misfire_window, since, next_at, now
SELECT s.name, s.cron, s.every, s.timezone, s.misfire, s.misfire_window, s.since, s.next_at, n.now
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS n
JOIN aiopgq.schedules s ON coalesce(s.next_at, s.since) <= n.now
WHERE s.paused_at IS NULL AND s.name <> ALL ($1)
  AND (NOT s.declared OR s.seen_at > n.now - make_interval(secs => $2))
ORDER BY coalesce(s.next_at, s.since)
LIMIT $3::integer
