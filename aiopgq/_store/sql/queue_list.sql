-- queue_list: list queues that have jobs, are served, are paused or have a limit
--
-- Locks:   none
-- Index:   none
-- Returns: queue, paused_at, ready, waiting, held, running, workers, most_running, rate, burst, per
WITH jobs AS (
    SELECT
        j.queue,
        count(*) FILTER (WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL) AS ready,
        count(*) FILTER (WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NULL) AS waiting,
        count(*) FILTER (WHERE j.held IS NOT NULL) AS held,
        count(*) FILTER (WHERE j.status <> 'pending') AS running
    FROM aiopgq.jobs j GROUP BY j.queue
), served AS (
    SELECT q.queue, count(*) AS workers
    FROM aiopgq.workers w CROSS JOIN unnest(w.queues) AS q (queue)
    WHERE w.dead_at IS NULL AND w.heartbeat_at > clock_timestamp() - w.lease
    GROUP BY q.queue
), known AS (
    SELECT jobs.queue FROM jobs
    UNION
    SELECT served.queue FROM served
    UNION
    SELECT s.name FROM aiopgq.queues s
)
SELECT k.queue, q.paused_at, coalesce(j.ready, 0) AS ready, coalesce(j.waiting, 0) AS waiting,
    coalesce(j.held, 0) AS held, coalesce(j.running, 0) AS running, coalesce(s.workers, 0) AS workers,
    q.running AS most_running, q.rate, q.burst, q.per
FROM known k
LEFT JOIN jobs j ON j.queue = k.queue
LEFT JOIN served s ON s.queue = k.queue
LEFT JOIN aiopgq.queues q ON q.name = k.queue
ORDER BY k.queue
