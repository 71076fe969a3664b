-- take_shards: take shards that nobody holds
--
--   $1  uuid     the relay
--   $2  integer  the most to take
--
-- Locks:   the shards, FOR UPDATE SKIP LOCKED; never waits
-- Index:   outbox_shards_key
-- Returns: shard
SELECT t.shard FROM aiopgq.take_shards($1, $2) AS t (shard)
