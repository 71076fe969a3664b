-- purge: delete dead letters for good
--
--   $1  uuid[]  ids
--
-- Locks:   the rows, in the order of id
-- Index:   dead_letters_key
-- Returns: id
WITH chosen AS (
    SELECT d.id FROM aiopgq.dead_letters d WHERE d.id = ANY ($1) ORDER BY d.id FOR UPDATE
)
DELETE FROM aiopgq.dead_letters d USING chosen c WHERE d.id = c.id RETURNING d.id
