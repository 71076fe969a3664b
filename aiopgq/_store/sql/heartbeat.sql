-- heartbeat: one beat of an incarnation
--
--   $1  uuid     the incarnation
--   $2  boolean  it takes no more jobs
--
-- Locks:   its row
-- Index:   workers_key, jobs_worker
-- Returns: alive, fleet, cancelled, drain
SELECT h.alive, h.fleet, h.cancelled, h.drain FROM aiopgq.heartbeat($1, $2) AS h
