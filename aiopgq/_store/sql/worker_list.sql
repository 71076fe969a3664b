-- worker_list: the incarnations of workers, the youngest first, and how many jobs each has
--
--   $1  boolean  those that have ended as well
--
-- Locks:   none
-- Index:   jobs_worker
-- Returns: id, name, host, pid, version, queues, tasks, concurrency, jobs, started_at, heartbeat_at, silent_for, lease, draining, ended_at
SELECT w.id, w.name, w.host, w.pid, w.version, w.queues, w.tasks, w.concurrency, held.jobs, w.started_at,
    w.heartbeat_at, date_part('epoch', clock_timestamp() - w.heartbeat_at) AS silent_for,
    date_part('epoch', w.lease) AS lease, w.draining OR w.drain_requested AS draining,
    w.dead_at AS ended_at
FROM aiopgq.workers w
CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM aiopgq.jobs j WHERE j.worker_id = w.id) AS held
WHERE w.dead_at IS NULL OR $1
ORDER BY w.started_at DESC, w.id
