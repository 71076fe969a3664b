-- beats: the beats of all incarnations that are not dead
--
-- Locks:   none
-- Index:   none
-- Returns: id, name, beat, lease
SELECT w.id, w.name, w.beat, w.lease
FROM aiopgq.workers w
WHERE w.dead_at IS NULL
