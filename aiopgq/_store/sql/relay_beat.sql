-- relay_beat: one beat of a relay
--
--   $1  uuid  the relay
--
-- Locks:   its row
-- Index:   relays_key
-- Returns: alive, relays
SELECT b.alive, b.relays FROM aiopgq.relay_beat($1) AS b
