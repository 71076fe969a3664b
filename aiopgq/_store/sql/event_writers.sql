-- event_writers: the last id drawn, and the unfinished transactions that added events
--
-- Locks:   none
-- Index:   none
-- Returns: newest, shards, transactions
SELECT w.newest, w.shards, w.transactions FROM aiopgq.event_writers() AS w
