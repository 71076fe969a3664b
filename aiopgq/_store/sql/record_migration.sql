-- record_migration: write that a migration is applied; the first statement of its transaction
--
--   $1  integer  number
--   $2  text     name
--   $3  text     checksum, hexadecimal SHA-256 of the file
--   $4  integer  oldest code that can run once it is applied
--   $5  text     version of aiopgq that applies it
--
-- Locks:   the new row
-- Index:   none read
-- Returns: number
INSERT INTO aiopgq.migrations (number, name, checksum, oldest_code, applied_by)
VALUES ($1, $2, $3, $4, $5)
RETURNING number
