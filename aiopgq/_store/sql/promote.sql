-- promote: give due jobs a place in line, let in those that arrived outside, and learn when the next one is due
--
--   $1  timestamptz  the earliest run_at to look at
--   $2  integer      the most jobs to promote
--   $3  text[]       tasks the worker knows
--
-- Locks:   the chosen rows, FOR UPDATE SKIP LOCKED; then the gates of their keys, in order
-- Index:   jobs_due
-- Returns: promoted, reached, next_in
SELECT p.promoted, p.reached, p.next_in FROM aiopgq.promote_jobs($1, $2, $3) AS p
