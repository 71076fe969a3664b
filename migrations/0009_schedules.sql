-- 0009: schedules: what enqueues jobs at set times, each fire time once
-- phase: before
-- oldest code: 1
-- locks: none; everything is new
--
-- A worker computes when a schedule fires, since PostgreSQL reads no cron expressions; its clock decides what is due.
-- Whoever is first moves next_at on and enqueues, in one transaction; for the others the row no longer fits.

CREATE TABLE aiopgq.schedules (
    name text NOT NULL CONSTRAINT schedules_key PRIMARY KEY,
    next_at timestamptz,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz,
    paused_at timestamptz,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_job uuid,
    every double precision,
    misfire_window double precision NOT NULL DEFAULT 86400,
    timeout double precision,
    max_attempts integer NOT NULL DEFAULT 12,
    priority smallint NOT NULL DEFAULT 100,
    declared boolean NOT NULL DEFAULT false,
    cron text,
    timezone text NOT NULL DEFAULT 'UTC',
    misfire text NOT NULL DEFAULT 'once',
    queue text NOT NULL DEFAULT 'default',
    task text NOT NULL,
    args jsonb NOT NULL DEFAULT '{}',
    headers jsonb,
    CONSTRAINT name_has_1_to_200_bytes CHECK (octet_length(name) BETWEEN 1 AND 200),
    CONSTRAINT a_schedule_has_an_expression_or_an_interval CHECK ((cron IS NULL) <> (every IS NULL)),
    CONSTRAINT an_interval_is_a_tenth_of_a_second_to_a_hundred_years CHECK (every BETWEEN 0.1 AND 3153600000),
    CONSTRAINT misfire_window_is_at_most_a_hundred_years CHECK (misfire_window BETWEEN 0 AND 3153600000),
    CONSTRAINT timeout_is_at_most_a_hundred_years CHECK (timeout BETWEEN 0 AND 3153600000),
    CONSTRAINT misfire_is_skip_once_or_all CHECK (misfire IN ('skip', 'once', 'all')),
    CONSTRAINT queue_has_1_to_200_bytes CHECK (octet_length(queue) BETWEEN 1 AND 200),
    CONSTRAINT task_has_1_to_200_bytes CHECK (octet_length(task) BETWEEN 1 AND 200),
    CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    CONSTRAINT headers_is_an_object CHECK (jsonb_typeof(headers) = 'object'),
    CONSTRAINT max_attempts_is_at_least_one CHECK (max_attempts >= 1)
) WITH (fillfactor = 50);
COMMENT ON TABLE aiopgq.schedules IS 'What enqueues jobs at set times.';
COMMENT ON COLUMN aiopgq.schedules.next_at IS 'The next fire time; NULL: to be computed by a worker, from since on.';
COMMENT ON COLUMN aiopgq.schedules.since IS 'When it was made, changed or resumed; it has no earlier fire times.';
COMMENT ON COLUMN aiopgq.schedules.last_at IS 'The last fire time a job was enqueued for.';
COMMENT ON COLUMN aiopgq.schedules.declared IS 'Written by workers because their code declares it; else made at run time.';
COMMENT ON COLUMN aiopgq.schedules.seen_at IS 'When a live worker last declared it; a while later it fires no more.';
COMMENT ON COLUMN aiopgq.schedules.every IS 'Seconds between two fire times.';
COMMENT ON COLUMN aiopgq.schedules.timeout IS 'Seconds; NULL = the timeout of the task; zero = none.';

CREATE FUNCTION aiopgq.set_schedule(
    p_name text, p_declared boolean, p_cron text, p_every double precision, p_timezone text, p_misfire text,
    p_misfire_window double precision, p_task text, p_args jsonb, p_queue text, p_priority smallint,
    p_max_attempts integer, p_timeout double precision, p_headers jsonb, p_orphaned_after double precision,
    p_limit_key text DEFAULT NULL, p_order_key text DEFAULT NULL, p_order_blocks boolean DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    old aiopgq.schedules;
    retimed boolean;
    changed boolean;
BEGIN
    LOOP
        INSERT INTO aiopgq.schedules
            (name, declared, cron, every, timezone, misfire, misfire_window, task, args, queue, priority,
             max_attempts, timeout, headers, limit_key, order_key, order_blocks)
        VALUES
            (p_name, p_declared, p_cron, p_every, p_timezone, p_misfire, p_misfire_window, p_task, p_args, p_queue,
             p_priority, p_max_attempts, p_timeout, p_headers, p_limit_key, p_order_key, p_order_blocks)
        ON CONFLICT (name) DO NOTHING;
        IF FOUND THEN
            RETURN 'made';
        END IF;
        SELECT * INTO old FROM aiopgq.schedules s WHERE s.name = p_name FOR UPDATE;
        -- Else it was removed in between, and is made anew.
        EXIT WHEN FOUND;
    END LOOP;

    -- What code declares is changed in the code, and what was made at run time is not taken away by code.
    IF p_declared AND NOT old.declared THEN
        RETURN 'made at run time';
    ELSIF old.declared AND NOT p_declared
          AND old.seen_at > clock_timestamp() - make_interval(secs => p_orphaned_after) THEN
        RETURN 'declared';
    END IF;
    retimed := (old.cron, old.every, old.timezone) IS DISTINCT FROM (p_cron, p_every, p_timezone);
    changed := retimed
        OR (old.task, old.args, old.queue, old.priority, old.max_attempts, old.timeout, old.headers,
            old.misfire, old.misfire_window, old.limit_key, old.order_key, old.order_blocks)
        IS DISTINCT FROM
           (p_task, p_args, p_queue, p_priority, p_max_attempts, p_timeout, p_headers, p_misfire, p_misfire_window,
            p_limit_key, p_order_key, p_order_blocks);
    UPDATE aiopgq.schedules s
    SET declared = p_declared, cron = p_cron, every = p_every, timezone = p_timezone, misfire = p_misfire,
        misfire_window = p_misfire_window, task = p_task, args = p_args, queue = p_queue, priority = p_priority,
        max_attempts = p_max_attempts, timeout = p_timeout, headers = p_headers, seen_at = clock_timestamp(),
        limit_key = p_limit_key, order_key = p_order_key, order_blocks = p_order_blocks,
        -- One that fires as before misses nothing by being written again.
        next_at = CASE WHEN retimed THEN NULL ELSE old.next_at END,
        since = CASE WHEN retimed THEN clock_timestamp() ELSE old.since END
    WHERE s.name = p_name;

    RETURN CASE WHEN changed THEN 'changed' ELSE 'same' END;
END
$$;
COMMENT ON FUNCTION aiopgq.set_schedule IS
    'Make or change a schedule; a pause stays. Refused, and said, where code declares the name and p_declared is false, '
    'or the other way round.';

CREATE FUNCTION aiopgq.look_at_schedules(
    p_declared text[], p_passed_over text[], p_orphaned_after double precision,
    OUT due integer, OUT next_in double precision
)
LANGUAGE plpgsql
AS $$
DECLARE
    seen timestamptz := clock_timestamp();
BEGIN
    -- Once in a while is enough, and one worker's writing for all.
    UPDATE aiopgq.schedules s
    SET seen_at = seen
    WHERE s.name IN (
        SELECT o.name FROM aiopgq.schedules o
        WHERE o.declared AND o.name = ANY (p_declared)
          AND o.seen_at < seen - make_interval(secs => p_orphaned_after / 5)
        FOR UPDATE SKIP LOCKED);

    SELECT count(*) FILTER (WHERE coalesce(s.next_at, s.since) <= seen),
        extract(epoch FROM min(coalesce(s.next_at, s.since)) - seen)
    INTO due, next_in
    FROM aiopgq.schedules s
    WHERE s.paused_at IS NULL AND s.name <> ALL (p_passed_over)
      AND (NOT s.declared OR s.seen_at > seen - make_interval(secs => p_orphaned_after));
END
$$;
COMMENT ON FUNCTION aiopgq.look_at_schedules IS
    'How many schedules are due, and seconds until the next is; says that a live worker declares those named.';

CREATE FUNCTION aiopgq.run_schedule(p_name text, p_id uuid, p_moment timestamptz DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    one aiopgq.schedules;
    told jsonb;
BEGIN
    SELECT * INTO one FROM aiopgq.schedules s WHERE s.name = p_name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    told := coalesce(one.headers, '{}') || jsonb_build_object(
        'schedule', one.name,
        'scheduled_at', to_char(coalesce(p_moment, clock_timestamp()) AT TIME ZONE 'UTC',
            'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'));
    IF num_nonnulls(one.limit_key, one.order_key) > 0 THEN
        PERFORM aiopgq.enqueue_restrained_jobs(
            ARRAY[p_id], ARRAY[one.queue], ARRAY[one.task], ARRAY[one.args::text], ARRAY[one.priority], NULL, NULL,
            ARRAY[one.max_attempts], ARRAY[one.timeout], ARRAY[told::text],
            ARRAY[one.limit_key], ARRAY[one.order_key], ARRAY[one.order_blocks]);
    ELSE
        PERFORM aiopgq.enqueue(
            p_task => one.task, p_args => one.args, p_queue => one.queue, p_priority => one.priority::integer,
            p_max_attempts => one.max_attempts, p_timeout => make_interval(secs => one.timeout), p_id => p_id,
            p_headers => told);
    END IF;

    RETURN true;
END
$$;
COMMENT ON FUNCTION aiopgq.run_schedule IS
    'Enqueue a job of a schedule for a moment, now by default; its fire times stay as they are. False: there is none.';

CREATE FUNCTION aiopgq.fire_schedule(
    p_name text, p_since timestamptz, p_seen timestamptz, p_next_at timestamptz,
    p_ids uuid[], p_moments timestamptz[]
) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    -- Whoever holds the row is doing just this, or changes it.
    PERFORM FROM aiopgq.schedules s
    WHERE s.name = p_name AND s.since = p_since AND s.next_at IS NOT DISTINCT FROM p_seen AND s.paused_at IS NULL
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE aiopgq.schedules s
    SET next_at = p_next_at,
        last_at = coalesce(p_moments[cardinality(p_moments)], s.last_at),
        last_job = coalesce(p_ids[cardinality(p_ids)], s.last_job)
    WHERE s.name = p_name;
    FOR i IN 1 .. cardinality(p_ids) LOOP
        PERFORM aiopgq.run_schedule(p_name, p_ids[i], p_moments[i]);
    END LOOP;

    RETURN true;
END
$$;
COMMENT ON FUNCTION aiopgq.fire_schedule IS
    'Move a schedule on from the fire time that was seen, and enqueue a job for each moment: all of it or nothing. '
    'False: somebody was faster, or the schedule has changed.';

INSERT INTO aiopgq.rights (grantee, privileges, kind, name) VALUES
    ('reader', 'SELECT', 'TABLE', 'schedules'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'schedules');
SELECT aiopgq.renew_grants();
