-- lock_migrations: let only one transaction at a time change a schema
--
--   $1  text  the schema
--
-- Locks:   an advisory lock, until the transaction ends
-- Index:   none
-- Returns: locked
SELECT pg_catalog.pg_advisory_xact_lock(
    pg_catalog.hashtextextended('aiopgq migrates ' || $1, 0)
) AS locked
