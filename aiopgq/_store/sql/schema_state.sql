-- schema_state: how much of the ground for migrations is there
--
--   $1  text  the schema
--
-- Locks:   none
-- Index:   none
-- Returns: has_schema, has_table
SELECT
    EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::text) AS has_schema,
    EXISTS (
        SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relname = 'migrations'
    ) AS has_table
