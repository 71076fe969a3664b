-- drain_rate: how fast the jobs of the archive were run, from the first claim to when the last settlement began
--
-- Locks:   none
-- Index:   none
-- Returns: rate, completed
SELECT
    count(*) FILTER (WHERE a.completed_at < span.last)
        / nullif(extract(epoch FROM (max(span.last) - max(span.first))), 0)::float8 AS rate,
    count(*) AS completed
FROM aiopgq.archive a,
    (SELECT min(claimed_at) AS first, max(completed_at) AS last FROM aiopgq.archive) AS span
