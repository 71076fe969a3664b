-- replay: make dead letters pending jobs again
--
--   $1  uuid[]  ids
--
-- Locks:   the rows, in the order of id; then those with unique keys in the order of the keys
-- Index:   dead_letters_key
-- Returns: id, keyed_by; the job that has the unique key of a dead letter, which is left
SELECT r.id, r.keyed_by FROM aiopgq.replay_dead_letters($1) AS r
