-- heartbeat: one beat of an incarnation
--
--   $1  uuid     the incarnation
--   $2  boolean  it takes no more jobs
--
-- Locks:   its row
-- Index:   workers_key, jobs_worker
-- Returns: alive, fleet, cancelled
SELECT h.alive, h.fleet, h.cancelled FROM aiopgq.heartbeat($1, $2) AS h
