-- receive_message: record a message in the transaction of its effect
--
--   $1  text    the consumer
--   $2  text    the id of the message
--   $3  float8  seconds to wait for a transaction that is receiving the same message, or NULL for ever
--
-- Locks:   the new row, and an advisory lock shared by all who hold such messages, until the transaction ends
-- Index:   inbox_key
-- Returns: first, held_by; first is NULL if that transaction did not end in time
SELECT r.first, r.held_by FROM aiopgq.receive_message_within($1, $2, $3) AS r
