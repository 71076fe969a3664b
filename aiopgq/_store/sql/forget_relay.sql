-- forget_relay: take a relay's shards from it
--
--   $1  uuid    the relay
--   $2  bigint  only if this beat still stands; NULL: in any case
--
-- Locks:   its row
-- Index:   relays_key
-- Returns: forget_relay
SELECT aiopgq.forget_relay($1, $2) AS forget_relay
