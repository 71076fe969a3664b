-- claim: take ready jobs for a worker, each lane from its lower bound
--
--   $1  uuid         the worker's incarnation
--   $2  uuid         claim_id, fresh for this batch
--   $3  integer      free slots in all
--   $4  text[]       tasks the worker knows
--   $5  text[]       queues with free slots, in the order they are served
--   $6  integer[]    free slots of each queue
--   $7  text[]       queue of each lane, highest priority first; NULL sweeps all lanes from the start
--   $8  smallint[]   priority of each lane
--   $9  bigint[]     lowest place of each lane to look at
--
-- Locks:   the rows of queues with a limit or a pause, in order; the chosen rows, FOR UPDATE SKIP LOCKED
-- Index:   jobs_line
-- Returns: id, queue, task, priority, place, args, headers, attempts, max_attempts, timeout, created; in no order
SELECT c.id, c.queue, c.task, c.priority, c.place, c.args, c.headers,
    c.attempts, c.max_attempts, c.timeout, date_part('epoch', c.created_at) AS created
FROM aiopgq.claim_lanes($1, $2, $3, $4, $5, $6, $7, $8, $9) AS c
