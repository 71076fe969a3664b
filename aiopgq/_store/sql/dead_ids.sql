-- dead_ids: the oldest dead letters that fit the filters
--
--   $1  uuid[]       ids, or NULL for any
--   $2  text         task, or NULL for any
--   $3  text         queue, or NULL for any
--   $4  text         a part of the last error, or NULL
--   $5  timestamptz  failed before, or NULL
--   $6  bigint       the most to return
--
-- Locks:   none
-- Index:   none
-- Returns: id
SELECT d.id FROM aiopgq.dead_letters d
WHERE ($1::uuid[] IS NULL OR d.id = ANY ($1))
  AND ($2::text IS NULL OR d.task = $2)
  AND ($3::text IS NULL OR d.queue = $3)
  AND ($4::text IS NULL OR strpos(d.last_error, $4) > 0)
  AND ($5::timestamptz IS NULL OR d.failed_at < $5)
ORDER BY d.failed_at
LIMIT $6
