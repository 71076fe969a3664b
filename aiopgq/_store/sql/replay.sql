-- replay: make dead letters pending jobs again
--
--   $1  uuid[]  ids
--
-- Locks:   the rows, in the order of id
-- Index:   dead_letters_key
-- Returns: id
SELECT r.id FROM aiopgq.replay_dead_letters($1) AS r (id)
