-- enqueue_restrained: as enqueue_once, for jobs with a limit or an order
--
--   $1   uuid[]         ids
--   $2   text[]         queues; here and in $3, $5, $8 one value may stand for all
--   $3   text[]         tasks
--   $4   text[]         arguments, JSON
--   $5   smallint[]     priorities
--   $6   float8[]       delays in seconds, or NULL
--   $7   timestamptz[]  moments they are due, or NULL
--   $8   integer[]      attempts they may take
--   $9   float8[]       timeouts in seconds, or NULL for the task's own
--   $10  text[]         headers, JSON, or NULL
--   $11  text[]         limit keys, or NULL
--   $12  text[]         order keys, or NULL
--   $13  boolean[]      whether one that fails stops those behind it, or NULL
--
-- Locks:   the new rows; waits for a transaction that is inserting the same id
-- Index:   jobs_key, archive_key, dead_letters_key
-- Returns: id; of those inserted now
SELECT e.id FROM aiopgq.enqueue_restrained_jobs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13
) AS e (id)
