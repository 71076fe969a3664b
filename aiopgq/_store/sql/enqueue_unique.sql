-- enqueue_unique: insert a batch of jobs of which some have a unique key, all or none
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
--   $14  text[]         unique keys, or NULL
--   $15  text[]         what to do if the key is taken: skip, replace or debounce
--   $16  float8[]       seconds the key stays taken after completion, or NULL
--   $17  float8[]       seconds after the first enqueue beyond which debounce postpones nothing, or NULL
--   $18  boolean        skip ids that are known, whatever became of their jobs
--
-- Locks:   the new rows, and pending ones of the same keys, in the order of the keys; waits five seconds at most
-- Index:   jobs_unique, unique_holds_key, jobs_key, archive_key, dead_letters_key
-- Returns: number, id, verdict, writer; a row a job, or one that says busy and nothing was written
SELECT e.number, e.id, e.verdict, e.writer
FROM aiopgq.enqueue_unique_jobs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18
) AS e
