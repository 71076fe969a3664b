-- schedules: the schedules, by name
--
--   $1  text    only this one, or NULL
--   $2  float8  seconds after which a schedule that no worker declares is orphaned
--
-- Locks:   none
-- Index:   none
-- Returns: name, task, args, queue, priority, headers, cron, every, timezone, misfire, misfire_window, declared, orphaned, created_at, since, next_at, last_at, last_job, paused_at, now
SELECT s.name, s.task, s.args::text AS args, s.queue, s.priority, s.headers::text AS headers, s.cron, s.every,
    s.timezone, s.misfire, s.misfire_window, s.declared,
    s.declared AND s.seen_at <= n.now - make_interval(secs => $2) AS orphaned,
    s.created_at, s.since, s.next_at, s.last_at, s.last_job, s.paused_at, n.now
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS n, aiopgq.schedules s
WHERE $1::text IS NULL OR s.name = $1
ORDER BY s.name COLLATE "C"
