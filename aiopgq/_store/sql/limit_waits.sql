-- limit_waits: for this transaction, wait for locks no longer than told, and work as long as it takes
--
--   $1  text  longest wait for a lock, such as 50ms
--
-- Locks:   none
-- Index:   none
-- Returns: lock_timeout, statement_timeout
SELECT
    pg_catalog.set_config('lock_timeout', $1, true) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', '0', true) AS statement_timeout
