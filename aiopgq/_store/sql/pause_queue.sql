-- pause_queue: let no job of a queue be claimed
--
--   $1  text  the queue
--
-- Locks:   the row of the queue
-- Index:   queues_key
-- Returns: changed; false if it was paused
SELECT aiopgq.pause_queue($1) AS changed
