-- resume_queue: end the pause of a queue
--
--   $1  text  the queue
--
-- Locks:   the row of the queue
-- Index:   queues_key
-- Returns: changed; false if it was not paused
SELECT aiopgq.resume_queue($1) AS changed
