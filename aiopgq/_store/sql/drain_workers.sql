-- drain_workers: ask workers to claim no more, finish what runs, and end; the ids of those that live
--
--   $1  uuid[]  incarnations
--
-- Locks:   their rows, in the order of id
-- Index:   workers_key
-- Returns: id
SELECT d.id FROM aiopgq.drain_workers($1) AS d (id)
