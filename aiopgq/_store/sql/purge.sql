-- purge: delete dead letters for good
--
--   $1  uuid[]  ids
--
-- Locks:   the rows, in the order of id; then the gates of those that stopped others
-- Index:   dead_letters_key
-- Returns: id
SELECT p.id FROM aiopgq.purge_dead_letters($1) AS p (id)
