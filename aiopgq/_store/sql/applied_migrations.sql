-- applied_migrations: the migrations this database has
--
-- Locks:   none
-- Index:   none
-- Returns: number, name, checksum, oldest_code
SELECT m.number, m.name, m.checksum, m.oldest_code FROM aiopgq.migrations m ORDER BY m.number
