-- drain_rate: how fast the jobs of the archive were run, from the first claim to when the last settlement began
--
--   $1  text  the task, NULL for all
--
-- Locks:   none
-- Index:   none
-- Returns: rate, completed
SELECT
    count(*) FILTER (WHERE a.completed_at < span.last)
        / nullif(extract(epoch FROM (max(span.last) - max(span.first))), 0)::float8 AS rate,
    count(*) AS completed
FROM aiopgq.archive a,
    (SELECT min(o.claimed_at) AS first, max(o.completed_at) AS last
     FROM aiopgq.archive o WHERE $1::text IS NULL OR o.task = $1) AS span
WHERE $1::text IS NULL OR a.task = $1
