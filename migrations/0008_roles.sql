-- 0008: roles: nothing is for everybody, and one line grants a role what it needs
-- phase: before
-- oldest code: 1
-- locks: none; rows of the functions in the catalogs
--
-- PostgreSQL lets everybody execute a new function. Some of these act with the rights of the schema's owner, so
-- each migration that adds functions ends as this one does: taken from everybody, granted again to those who had them.
-- What it gives to whom are rows of the table rights; the functions that grant stay as they are.
-- Who enqueues needs no right to the tables: the functions insert as the owner of the schema, and only what they say.

ALTER FUNCTION aiopgq.enqueue_jobs SECURITY DEFINER SET search_path = pg_catalog;
ALTER FUNCTION aiopgq.enqueue_jobs_once SECURITY DEFINER SET search_path = pg_catalog;

CREATE TABLE aiopgq.rights (
    grantee text NOT NULL,
    privileges text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    CONSTRAINT rights_key PRIMARY KEY (grantee, kind, name),
    CONSTRAINT grantee_is_producer_reader_or_worker CHECK (grantee IN ('producer', 'reader', 'worker')),
    CONSTRAINT kind_is_function_table_or_sequence CHECK (kind IN ('FUNCTION', 'TABLE', 'SEQUENCE'))
);
COMMENT ON TABLE aiopgq.rights IS
    'What grant_producer, grant_reader and grant_worker grant. A worker may execute all functions but those that grant.';

INSERT INTO aiopgq.rights (grantee, privileges, kind, name) VALUES
    ('producer', 'EXECUTE', 'FUNCTION', 'enqueue'),
    ('producer', 'EXECUTE', 'FUNCTION', 'enqueue_jobs'),
    ('producer', 'EXECUTE', 'FUNCTION', 'enqueue_jobs_once'),
    ('producer', 'EXECUTE', 'FUNCTION', 'new_id'),
    ('reader', 'EXECUTE', 'FUNCTION', 'await_results'),
    ('reader', 'SELECT', 'TABLE', 'jobs'),
    ('reader', 'SELECT', 'TABLE', 'archive'),
    ('reader', 'SELECT', 'TABLE', 'dead_letters'),
    ('reader', 'SELECT', 'TABLE', 'workers'),
    ('reader', 'SELECT', 'TABLE', 'all_jobs'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'jobs'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'dead_letters'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'workers'),
    ('worker', 'SELECT, INSERT', 'TABLE', 'archive'),
    ('worker', 'SELECT', 'TABLE', 'all_jobs'),
    ('worker', 'USAGE', 'SEQUENCE', 'places');

CREATE FUNCTION aiopgq.grant_rights(p_role text, p_grantee text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
DECLARE
    one regprocedure;
    given record;
BEGIN
    -- No role is called public, so nothing is granted to everybody by mistake.
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p_role) THEN
        RAISE undefined_object USING
            MESSAGE = format('role "%s" does not exist', p_role),
            HINT = format('Make it first: CREATE ROLE %I LOGIN;', p_role);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', aiopgq.channel(), p_role);
    -- Every program of ours first looks which migrations there are.
    EXECUTE format('GRANT SELECT ON TABLE %s TO %I', 'aiopgq.migrations'::regclass, p_role);
    FOR one IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'aiopgq.jobs'::regclass)
          AND p.proname <> ALL (ARRAY['grant_rights', 'grant_producer', 'grant_reader', 'grant_worker', 'renew_grants'])
          AND (p_grantee = 'worker' OR p.proname IN (
              SELECT g.name FROM aiopgq.rights g WHERE g.grantee = p_grantee AND g.kind = 'FUNCTION'))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', one, p_role);
    END LOOP;
    FOR given IN
        SELECT g.privileges, g.kind, g.name FROM aiopgq.rights g WHERE g.grantee = p_grantee AND g.kind <> 'FUNCTION'
    LOOP
        EXECUTE format(
            'GRANT %s ON %s %I.%I TO %I', given.privileges, given.kind, aiopgq.channel(), given.name, p_role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.grant_rights IS 'Let a role into the schema, and give it what the table rights lists.';

CREATE FUNCTION aiopgq.grant_producer(p_role text) RETURNS void
LANGUAGE sql
AS $$
    SELECT aiopgq.grant_rights(p_role, 'producer')
$$;
COMMENT ON FUNCTION aiopgq.grant_producer IS
    'Let a role enqueue, receive messages and add events, and nothing else: it sees neither jobs nor results. Only the '
    'owner of the schema can call it.';

CREATE FUNCTION aiopgq.grant_reader(p_role text) RETURNS void
LANGUAGE sql
AS $$
    SELECT aiopgq.grant_rights(p_role, 'reader')
$$;
COMMENT ON FUNCTION aiopgq.grant_reader IS
    'Let a role look at jobs and wait for results. Only the owner of the schema can call it.';

CREATE FUNCTION aiopgq.grant_worker(p_role text) RETURNS void
LANGUAGE sql
AS $$
    SELECT aiopgq.grant_rights(p_role, 'worker')
$$;
COMMENT ON FUNCTION aiopgq.grant_worker IS
    'Let a role do all that aiopgq does but migrate: it creates and alters nothing, and drops no more than days of the '
    'archive. Only the owner of the schema can call it.';

CREATE FUNCTION aiopgq.renew_grants() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
DECLARE
    one record;
BEGIN
    EXECUTE format('REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', aiopgq.channel());
    FOR one IN
        -- What a role may execute tells what it was granted as.
        SELECT r.rolname::text AS role, p.proname::text AS sign
        FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS a JOIN pg_roles r ON r.oid = a.grantee
        WHERE p.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'aiopgq.jobs'::regclass)
          AND p.proname IN ('enqueue_jobs', 'await_results', 'claim_lanes')
          AND a.grantee <> p.proowner
    LOOP
        CASE one.sign
            WHEN 'enqueue_jobs' THEN PERFORM aiopgq.grant_producer(one.role);
            WHEN 'await_results' THEN PERFORM aiopgq.grant_reader(one.role);
            ELSE PERFORM aiopgq.grant_worker(one.role);
        END CASE;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.renew_grants IS
    'The last line of a migration that adds functions: nothing for everybody, what they need for those granted before.';

SELECT aiopgq.renew_grants();
