-- outbox_lag: how far relays are behind
--
-- Locks:   none
-- Index:   none
-- Returns: unpublished, oldest_seconds, retrying, blocked, set_aside, relays
SELECT l.unpublished, l.oldest_seconds, l.retrying, l.blocked, l.set_aside, l.relays FROM aiopgq.outbox_lag() AS l
