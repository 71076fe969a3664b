-- inbox_consumers: what each consumer has received, as far as it is kept
--
-- Locks:   none
-- Index:   none
-- Returns: consumer, messages, oldest, newest
SELECT i.consumer, count(*) AS messages, min(i.received_at) AS oldest, max(i.received_at) AS newest
FROM aiopgq.inbox i
GROUP BY i.consumer
ORDER BY i.consumer
