-- backend_pid: the server process that answers; behind a pooler another one than the connection was told
--
-- Locks:   none
-- Index:   none
-- Returns: pid
SELECT pg_catalog.pg_backend_pid() AS pid
