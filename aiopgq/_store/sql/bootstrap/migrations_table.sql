-- The one table that no migration makes: which migrations were applied.
CREATE TABLE IF NOT EXISTS aiopgq.migrations (
    number integer NOT NULL CONSTRAINT migrations_key PRIMARY KEY,
    oldest_code integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    name text NOT NULL,
    checksum text NOT NULL,
    applied_by text NOT NULL
);
COMMENT ON TABLE aiopgq.migrations IS 'The migrations applied to this schema, and by which version.';
COMMENT ON COLUMN aiopgq.migrations.checksum IS 'SHA-256 of the file.';
COMMENT ON COLUMN aiopgq.migrations.oldest_code IS
    'Code may run on this schema if it knows migrations up to this number, or later ones.';
