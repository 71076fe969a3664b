-- mark_published: mark events that a broker has confirmed
--
--   $1  uuid      the relay
--   $2  bigint[]  ids
--
-- Locks:   the rows, in the order of id
-- Index:   outbox_key
-- Returns: id
SELECT p.id FROM aiopgq.mark_published($1, $2) AS p (id)
