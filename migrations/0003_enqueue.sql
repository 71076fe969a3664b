-- 0003: enqueue, the first step of a job's life
-- phase: before
-- oldest code: 1
-- locks: none; everything is new

CREATE FUNCTION aiopgq.enqueue_jobs(
    p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[],
    p_delays double precision[], p_run_ats timestamptz[], p_max_attempts integer[],
    p_timeouts double precision[], p_headers text[]
) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    inserted bigint;
    -- One reading for the whole batch: a job without a delay is ready when it is inserted.
    started timestamptz := clock_timestamp();
    paused text[] := CASE WHEN pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN aiopgq.paused_names() END;
BEGIN
    -- Mostly the jobs differ by nothing but their arguments, and are ready: then this takes a fifth less time.
    IF paused IS NULL AND num_nonnulls(p_delays, p_run_ats, p_timeouts, p_headers) = 0
       AND 1 = ALL (ARRAY[cardinality(p_queues), cardinality(p_tasks), cardinality(p_priorities), cardinality(p_max_attempts)]) THEN
        INSERT INTO aiopgq.jobs (id, queue, task, args, priority, run_at, created_at, place, max_attempts)
        SELECT
            c.id, p_queues[1], p_tasks[1], c.args::jsonb, p_priorities[1], started, started, nextval('aiopgq.places'),
            p_max_attempts[1]
        FROM unnest(p_ids, p_args) AS c (id, args);
        GET DIAGNOSTICS inserted = ROW_COUNT;

        RETURN inserted;
    END IF;

    INSERT INTO aiopgq.jobs
        (id, queue, task, args, priority, run_at, created_at, place, max_attempts, timeout, headers, held)
    SELECT
        c.id, coalesce(c.queue, p_queues[1]), coalesce(c.task, p_tasks[1]), c.args::jsonb,
        coalesce(c.priority, p_priorities[1]),
        coalesce(c.run_at, started + make_interval(secs => c.delay), started),
        started,
        CASE WHEN coalesce(c.run_at, started + make_interval(secs => c.delay), started) <= started
             THEN nextval('aiopgq.places') END,
        coalesce(c.max_attempts, p_max_attempts[1]), make_interval(secs => c.timeout), c.headers::jsonb,
        CASE WHEN paused IS NULL THEN NULL
             WHEN coalesce(c.task, p_tasks[1]) = ANY (paused)
              AND coalesce(c.run_at, started + make_interval(secs => c.delay), started) <= started THEN 'paused' END
    FROM unnest(
        p_ids, p_queues, p_tasks, p_args, p_priorities, p_delays, p_run_ats, p_max_attempts, p_timeouts, p_headers
    ) AS c (id, queue, task, args, priority, delay, run_at, max_attempts, timeout, headers);
    GET DIAGNOSTICS inserted = ROW_COUNT;

    RETURN inserted;
END
$$;
COMMENT ON FUNCTION aiopgq.enqueue_jobs IS
    'Insert a batch of jobs, in the order of the arrays; return how many. Times are seconds; a NULL delay and run_at means now. '
    'A queue, task, priority or number of attempts that is missing is the first one of its array.';

CREATE FUNCTION aiopgq.enqueue_jobs_once(
    p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[],
    p_delays double precision[], p_run_ats timestamptz[], p_max_attempts integer[],
    p_timeouts double precision[], p_headers text[]
) RETURNS SETOF uuid
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_indexonlyscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    started timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    INSERT INTO aiopgq.jobs AS j
        (id, queue, task, args, priority, run_at, created_at, place, max_attempts, timeout, headers)
    SELECT
        c.id, c.queue, c.task, c.args, c.priority, c.run_at, started, c.place, c.max_attempts, c.timeout, c.headers
    FROM (
        -- Places in the order of the arrays; OFFSET keeps them from being drawn after the sort below.
        SELECT
            n.id, coalesce(n.queue, p_queues[1]) AS queue, coalesce(n.task, p_tasks[1]) AS task,
            n.args::jsonb AS args, coalesce(n.priority, p_priorities[1]) AS priority,
            coalesce(n.run_at, started + make_interval(secs => n.delay), started) AS run_at,
            CASE WHEN coalesce(n.run_at, started + make_interval(secs => n.delay), started) <= started
                 THEN nextval('aiopgq.places') END AS place,
            coalesce(n.max_attempts, p_max_attempts[1]) AS max_attempts, make_interval(secs => n.timeout) AS timeout, n.headers::jsonb AS headers
        FROM unnest(
            p_ids, p_queues, p_tasks, p_args, p_priorities, p_delays, p_run_ats, p_max_attempts, p_timeouts, p_headers
        ) AS n (id, queue, task, args, priority, delay, run_at, max_attempts, timeout, headers)
        -- By ANY, and no scan of an index alone, so that whatever the planner believes of these tables, each id is
        -- looked up, and no index is read from end to end.
        WHERE NOT EXISTS (SELECT 1 FROM aiopgq.archive a WHERE a.id = ANY (ARRAY[n.id]))
          AND NOT EXISTS (SELECT 1 FROM aiopgq.dead_letters d WHERE d.id = ANY (ARRAY[n.id]))
        OFFSET 0
    ) AS c
    -- Rows are inserted in the order of id, so that two batches with the same ids do not wait for each other.
    ORDER BY c.id
    -- Waits for another transaction that is inserting the same id, and skips if it commits.
    ON CONFLICT (id) DO NOTHING
    RETURNING j.id;
END
$$;
COMMENT ON FUNCTION aiopgq.enqueue_jobs_once IS
    'As enqueue_jobs, but a job that is already known, whatever became of it, is not inserted again.';

CREATE FUNCTION aiopgq.new_id() RETURNS uuid
LANGUAGE sql VOLATILE
RETURN encode(
    -- The two bits that make a random UUID one of version 7.
    set_bit(
        set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
            ), 52, 1
        ), 53, 1
    ), 'hex')::uuid;
COMMENT ON FUNCTION aiopgq.new_id IS 'A UUID of version 7, as Python makes them: later ones sort later.';

CREATE FUNCTION aiopgq.enqueue(
    p_task text, p_args jsonb DEFAULT '{}', p_queue text DEFAULT 'default', p_priority integer DEFAULT 100,
    p_delay interval DEFAULT NULL, p_run_at timestamptz DEFAULT NULL, p_max_attempts integer DEFAULT 12,
    p_timeout interval DEFAULT NULL, p_headers jsonb DEFAULT NULL, p_id uuid DEFAULT NULL,
    p_unique_key text DEFAULT NULL, p_on_conflict text DEFAULT 'skip', p_unique_for interval DEFAULT NULL,
    p_max_delay interval DEFAULT NULL, p_limit_key text DEFAULT NULL, p_order_key text DEFAULT NULL,
    p_order_blocks boolean DEFAULT false
) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    answer record;
BEGIN
    p_id := coalesce(p_id, aiopgq.new_id());
    IF p_unique_key IS NULL AND num_nonnulls(p_limit_key, p_order_key) > 0 THEN
        PERFORM aiopgq.enqueue_restrained_jobs(
            ARRAY[p_id], ARRAY[p_queue], ARRAY[p_task], ARRAY[p_args::text], ARRAY[p_priority::smallint],
            ARRAY[extract(epoch FROM p_delay)::double precision], ARRAY[p_run_at], ARRAY[p_max_attempts],
            ARRAY[extract(epoch FROM p_timeout)::double precision], ARRAY[p_headers::text],
            ARRAY[p_limit_key], ARRAY[p_order_key], ARRAY[p_order_blocks]);

        RETURN p_id;
    END IF;
    IF p_unique_key IS NULL THEN
        PERFORM aiopgq.enqueue_jobs_once(
            ARRAY[p_id], ARRAY[p_queue], ARRAY[p_task], ARRAY[p_args::text], ARRAY[p_priority::smallint],
            ARRAY[extract(epoch FROM p_delay)::double precision], ARRAY[p_run_at], ARRAY[p_max_attempts],
            ARRAY[extract(epoch FROM p_timeout)::double precision], ARRAY[p_headers::text]);

        RETURN p_id;
    END IF;

    IF p_on_conflict NOT IN ('skip', 'replace', 'debounce') THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('p_on_conflict takes skip, replace or debounce, not %L', p_on_conflict);
    END IF;
    SELECT e.id, e.verdict, e.writer::jsonb AS writer INTO answer
    FROM aiopgq.enqueue_unique_jobs(
        ARRAY[p_id], ARRAY[p_queue], ARRAY[p_task], ARRAY[p_args::text], ARRAY[p_priority::smallint],
        ARRAY[extract(epoch FROM p_delay)::double precision], ARRAY[p_run_at], ARRAY[p_max_attempts],
        ARRAY[extract(epoch FROM p_timeout)::double precision], ARRAY[p_headers::text],
        ARRAY[p_limit_key], ARRAY[p_order_key], ARRAY[p_order_blocks],
        ARRAY[p_unique_key], ARRAY[p_on_conflict], ARRAY[extract(epoch FROM p_unique_for)::double precision],
        ARRAY[extract(epoch FROM p_max_delay)::double precision], true) AS e;
    IF answer.verdict = 'busy' THEN
        RAISE lock_not_available USING
            MESSAGE = format('unique key %L of task %L is written by a transaction that did not end within 5 seconds',
                             p_unique_key, p_task),
            DETAIL = format('pid %s, application_name %L, since %s', answer.writer->>'pid',
                            answer.writer->>'application_name', answer.writer->>'since'),
            HINT = 'End that transaction, or enqueue again later.';
    END IF;

    RETURN answer.id;
END
$$;
COMMENT ON FUNCTION aiopgq.enqueue IS
    'Enqueue one job from SQL, a trigger or another language; repeating a p_id enqueues nothing new. With a '
    'p_unique_key that an unfinished job of the task has, returns that job: as it is (skip), with these arguments and '
    'this moment (replace), or postponed (debounce, by p_max_delay after it was first enqueued at most). With a '
    'p_limit_key or a p_order_key it waits outside until it is let in.';
