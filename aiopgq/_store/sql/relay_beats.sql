-- relay_beats: the beats of all relays
--
-- Locks:   none
-- Index:   none
-- Returns: id, name, beat, lease
SELECT r.id, r.name, r.beat, r.lease FROM aiopgq.relay_beats() AS r
