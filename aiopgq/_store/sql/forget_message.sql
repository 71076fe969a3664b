-- forget_message: let a message be received again
--
--   $1  text  the consumer
--   $2  text  the id of the message
--
-- Locks:   the row
-- Index:   inbox_key
-- Returns: forgotten; false if it was not received
SELECT aiopgq.forget_message($1, $2) AS forgotten
