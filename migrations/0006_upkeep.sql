-- 0006: upkeep: incarnations and their beats, partitions of the archive, jobs of unknown tasks
-- phase: before
-- oldest code: 1
-- locks: none; everything is new

CREATE FUNCTION aiopgq.register_worker(
    p_id uuid, p_parent uuid, p_name text, p_host text, p_pid integer, p_version text,
    p_queues text[], p_tasks text[], p_concurrency integer, p_lease double precision, p_backend_pids integer[]
) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO aiopgq.workers
        (id, parent, name, host, pid, version, queues, tasks, concurrency, lease, backend_pids)
    VALUES
        (p_id, p_parent, p_name, p_host, p_pid, p_version, p_queues, p_tasks, p_concurrency,
         make_interval(secs => p_lease), p_backend_pids)
$$;

CREATE FUNCTION aiopgq.heartbeat(
    p_worker uuid, p_draining boolean DEFAULT false,
    OUT alive boolean, OUT fleet integer, OUT cancelled uuid[], OUT drain boolean
)
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE aiopgq.workers
    SET beat = beat + 1, heartbeat_at = clock_timestamp(), draining = p_draining
    WHERE id = p_worker AND dead_at IS NULL
    RETURNING drain_requested INTO drain;
    alive := FOUND;
    SELECT count(*) INTO fleet FROM aiopgq.workers w
    WHERE w.dead_at IS NULL AND w.heartbeat_at > clock_timestamp() - w.lease;
    SELECT array_agg(j.id) INTO cancelled FROM aiopgq.jobs j WHERE j.worker_id = p_worker AND j.cancel_requested;
END
$$;
COMMENT ON FUNCTION aiopgq.heartbeat IS
    'One beat of an incarnation. alive = false: it was declared dead and must return as a new one. '
    'cancelled: its jobs that somebody wants cancelled. drain: it shall claim no more, finish, and end.';

CREATE FUNCTION aiopgq.retire_worker(p_worker uuid) RETURNS void
LANGUAGE sql
AS $$
    UPDATE aiopgq.workers SET dead_at = clock_timestamp() WHERE id = p_worker AND dead_at IS NULL
$$;

CREATE FUNCTION aiopgq.make_partitions(p_days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '50ms'
AS $$
DECLARE
    home text := (SELECT n.nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
                  WHERE c.oid = 'aiopgq.archive'::regclass);
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    day date;
    part text;
    made integer := 0;
BEGIN
    -- One worker at a time; the others find the work done next time.
    IF NOT pg_try_advisory_xact_lock('aiopgq.archive'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    FOR day IN SELECT today + d FROM generate_series(-1, p_days) d LOOP
        part := 'archive_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(format('%I.%I', home, part)) IS NOT NULL;

        -- A table of its own first, with a CHECK that proves its bounds: attaching it then reads nothing and
        -- does not stop those who write to the archive.
        EXECUTE format('CREATE TABLE %I.%I (LIKE %I.archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS, '
            'CONSTRAINT completed_on_this_day CHECK (completed_at >= %L AND completed_at < %L))',
            home, part, home, day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
        EXECUTE format('ALTER TABLE %I.archive ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
            home, home, part, day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
        made := made + 1;
    END LOOP;

    RETURN made;
END
$$;
COMMENT ON FUNCTION aiopgq.make_partitions IS
    'Make the missing partitions of the archive from yesterday to p_days ahead. Waits 50 ms for a lock at most, because those who settle wait behind it.';

CREATE FUNCTION aiopgq.drop_partitions(p_retention double precision) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '50ms'
AS $$
DECLARE
    oldest date := ((clock_timestamp() - make_interval(secs => p_retention)) AT TIME ZONE 'UTC')::date;
    part record;
    dropped integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock('aiopgq.archive'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    FOR part IN
        SELECT n.nspname, c.relname FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE i.inhparent = 'aiopgq.archive'::regclass
          AND c.relname ~ '^archive_\d{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < oldest
    LOOP
        EXECUTE format('DROP TABLE %I.%I', part.nspname, part.relname);
        dropped := dropped + 1;
    END LOOP;

    RETURN dropped;
END
$$;
COMMENT ON FUNCTION aiopgq.drop_partitions IS
    'Drop the partitions whose whole day is older than p_retention seconds. Waits 50 ms for a lock at most.';

CREATE FUNCTION aiopgq.forget_workers(p_after double precision) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    forgotten integer;
BEGIN
    DELETE FROM aiopgq.workers w
    WHERE w.dead_at < clock_timestamp() - make_interval(secs => p_after)
      AND NOT EXISTS (SELECT 1 FROM aiopgq.jobs j WHERE j.worker_id = w.id);
    GET DIAGNOSTICS forgotten = ROW_COUNT;

    RETURN forgotten;
END
$$;

CREATE FUNCTION aiopgq.unserved_jobs(p_limit integer)
RETURNS TABLE (queue text, task text, jobs bigint, known boolean)
LANGUAGE sql STABLE
AS $$
    WITH alive AS (
        SELECT w.queues, w.tasks FROM aiopgq.workers w
        WHERE w.dead_at IS NULL AND w.heartbeat_at > clock_timestamp() - w.lease
    ), due AS (
        -- Bounded: a warning needs names, not exact counts.
        SELECT j.queue, j.task FROM aiopgq.jobs j
        WHERE j.status = 'pending' AND j.place IS NOT NULL AND (j.held IS NULL OR j.held IN ('unknown task', 'new order', 'new limit'))
        LIMIT p_limit
    )
    SELECT d.queue, d.task, count(*), EXISTS (SELECT 1 FROM alive a WHERE d.task = ANY (a.tasks))
    FROM due d
    WHERE NOT EXISTS (SELECT 1 FROM alive a WHERE d.task = ANY (a.tasks) AND d.queue = ANY (a.queues))
    GROUP BY d.queue, d.task
$$;
COMMENT ON FUNCTION aiopgq.unserved_jobs IS 'Due jobs, among the first p_limit, that no live worker would claim.';

CREATE FUNCTION aiopgq.hold_unknown_jobs(p_tasks text[], p_limit integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    moved integer;
BEGIN
    UPDATE aiopgq.jobs u SET held = 'unknown task'
    WHERE u.ctid = ANY (ARRAY(
        SELECT j.ctid FROM aiopgq.jobs j
        WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL AND j.task = ANY (p_tasks)
        ORDER BY j.id LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS moved = ROW_COUNT;

    RETURN moved;
END
$$;
COMMENT ON FUNCTION aiopgq.hold_unknown_jobs IS 'Take jobs of tasks that no live worker knows out of the line.';

CREATE FUNCTION aiopgq.free_known_jobs(p_tasks text[], p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    moved integer := 0;
    line record;
BEGIN
    FOR line IN
        WITH freed AS (
            UPDATE aiopgq.jobs u
            SET held = CASE WHEN u.limit_key IS NOT NULL AND u.run_at <= clock_timestamp() THEN 'new limit' END,
                place = CASE WHEN u.run_at <= clock_timestamp() THEN nextval('aiopgq.places') END
            WHERE u.ctid = ANY (ARRAY(
                -- In no order: to have one by id, the planner may read all jobs.
                SELECT j.ctid FROM aiopgq.jobs j
                WHERE j.held = 'unknown task' AND j.task = ANY (p_tasks)
                LIMIT p_limit
                FOR UPDATE SKIP LOCKED
            ))
            RETURNING u.queue, u.run_at
        )
        SELECT f.queue, count(*) AS jobs, min(f.run_at) AS due FROM freed f GROUP BY f.queue
    LOOP
        moved := moved + line.jobs;
        PERFORM aiopgq.wake_queue(line.queue, line.due);
    END LOOP;

    RETURN moved;
END
$$;
COMMENT ON FUNCTION aiopgq.free_known_jobs IS 'Put held jobs of tasks that a worker knows back into the line.';
