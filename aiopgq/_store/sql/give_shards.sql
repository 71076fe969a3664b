-- give_shards: give shards back
--
--   $1  uuid       the relay
--   $2  integer[]  the shards
--
-- Locks:   the shards
-- Index:   outbox_shards_key
-- Returns: give_shards
SELECT aiopgq.give_shards($1, $2) AS give_shards
