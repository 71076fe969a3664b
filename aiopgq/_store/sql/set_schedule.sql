-- set_schedule: make or change a schedule
--
--   $1   text      name
--   $2   boolean   whether code declares it
--   $3   text      cron expression, or NULL
--   $4   float8    seconds between fires, or NULL
--   $5   text      time zone
--   $6   text      misfire: skip, once or all
--   $7   float8    seconds back that all reaches
--   $8   text      task
--   $9   text      arguments, JSON
--   $10  text      queue
--   $11  smallint  priority
--   $12  integer   attempts its jobs may take
--   $13  float8    timeout in seconds, or NULL for the task's own
--   $14  text      headers, JSON, or NULL
--   $15  float8    seconds after which a schedule that no worker declares is orphaned
--   $16  text      limit key, or NULL
--   $17  text      order key, or NULL
--   $18  boolean   whether a job of it that fails stops those behind it, or NULL
--
-- Locks:   the row of the schedule
-- Index:   none read
-- Returns: became
SELECT aiopgq.set_schedule(
    $1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12, $13, $14::text::jsonb, $15, $16, $17, $18
) AS became
