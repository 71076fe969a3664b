-- 0010: unique jobs: a key has one unfinished job, or one within a period after its completion
-- phase: before
-- oldest code: 1
-- locks: ACCESS EXCLUSIVE on jobs and dead_letters, for a moment
--
-- A key belongs to its task. Whoever enqueues a key that another transaction has written and not committed waits for
-- the fate of that transaction, five seconds at most: a job is never skipped for one that is rolled back.

ALTER TABLE aiopgq.jobs ADD COLUMN unique_for interval
    CONSTRAINT unique_for_is_at_most_a_hundred_years CHECK (unique_for BETWEEN '0' AND '36500 days');
COMMENT ON COLUMN aiopgq.jobs.unique_for IS 'How long the key is kept after the job is completed; NULL = not at all.';
ALTER TABLE aiopgq.dead_letters ADD COLUMN unique_key text, ADD COLUMN unique_for interval;

CREATE TABLE aiopgq.unique_holds (
    unique_key text NOT NULL,
    task text NOT NULL,
    id uuid NOT NULL,
    until timestamptz NOT NULL,
    CONSTRAINT unique_holds_key PRIMARY KEY (unique_key, task)
);
COMMENT ON TABLE aiopgq.unique_holds IS
    'Keys of completed jobs that are unique for a period; apart from the archive, whose retention may be shorter.';
CREATE INDEX unique_holds_until ON aiopgq.unique_holds (until);

CREATE FUNCTION aiopgq.prune_holds(p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM aiopgq.unique_holds u
    WHERE u.ctid = ANY (ARRAY(
        SELECT h.ctid FROM aiopgq.unique_holds h
        WHERE h.until <= clock_timestamp()
        ORDER BY h.until LIMIT p_limit
        -- A settlement that renews a hold is never waited for, so it cannot wait for us in a circle.
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS gone = ROW_COUNT;

    RETURN gone;
END
$$;
COMMENT ON FUNCTION aiopgq.prune_holds IS 'Delete up to p_limit holds whose period is over.';

CREATE FUNCTION aiopgq.key_mark(p_task text, p_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN hashtextextended('unique key' || chr(31) || p_task || chr(31) || p_key, 0);
COMMENT ON FUNCTION aiopgq.key_mark IS
    'The advisory lock, shared and so never waited for, by which a transaction that wrote a key can be found.';

CREATE FUNCTION aiopgq.key_writer(p_task text, p_key text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_object('pid', a.pid, 'application_name', a.application_name, 'since', a.xact_start)
        FROM pg_stat_activity a
        WHERE a.pid <> pg_backend_pid() AND a.pid IN (
            SELECT l.pid FROM pg_locks l
            WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND (l.classid::bigint << 32) | l.objid::bigint
                  IN (aiopgq.key_mark(p_task, p_key), aiopgq.key_mark('', ''))
            UNION ALL
            -- Whoever is about to settle, claim or change the job that has the key.
            SELECT l.pid FROM aiopgq.jobs j JOIN pg_locks l ON l.transactionid = j.xmax AND l.granted
            WHERE j.unique_key = p_key AND j.task = p_task
        )
        ORDER BY a.xact_start LIMIT 1
    );
END
$$;
COMMENT ON FUNCTION aiopgq.key_writer IS
    'Tell which other transaction has written a key: pid, application_name, since; NULL if none is found.';

CREATE FUNCTION aiopgq.replace_job(
    p_task text, p_key text, p_debounce boolean, p_args jsonb, p_headers jsonb, p_priority smallint,
    p_run_at timestamptz, p_max_delay double precision,
    p_limit_key text, p_order_key text, p_order_blocks boolean
) RETURNS uuid
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    due timestamptz := p_run_at;
    job record;
    became record;
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM aiopgq.jobs j WHERE j.unique_key = p_key AND j.task = p_task AND j.status = 'pending'
    ) THEN
        RETURN NULL;
    END IF;
    SELECT j.id, j.queue, j.run_at, j.created_at, j.held, j.place, j.limit_key, j.order_key, j.order_no, j.order_blocks
    INTO job FROM aiopgq.jobs j
    WHERE j.unique_key = p_key AND j.task = p_task AND j.status = 'pending'
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Claimed between the two looks: PostgreSQL has locked it before it saw that. Its settlement would wait for
        -- us, and we for other jobs of that settlement; so the caller lets go of all and begins again.
        IF EXISTS (
            SELECT 1 FROM aiopgq.jobs j JOIN pg_locks l ON l.transactionid = j.xmax
            WHERE j.unique_key = p_key AND j.task = p_task AND l.pid = pg_backend_pid()
        ) THEN
            RAISE SQLSTATE 'AQ001' USING MESSAGE = 'the job was claimed while it was locked';
        END IF;
        RETURN NULL;
    END IF;

    IF p_debounce THEN
        due := greatest(job.run_at, least(due, job.created_at + make_interval(secs => p_max_delay)));
        p_limit_key := job.limit_key;
        p_order_key := job.order_key;
        p_order_blocks := job.order_blocks;
    END IF;
    UPDATE aiopgq.jobs j
    SET args = CASE WHEN p_debounce THEN j.args ELSE p_args END,
        headers = CASE WHEN p_debounce THEN j.headers ELSE p_headers END,
        priority = CASE WHEN p_debounce THEN j.priority ELSE p_priority END,
        -- What failed were other arguments.
        attempts = CASE WHEN p_debounce THEN j.attempts ELSE 0 END,
        run_at = due,
        limit_key = p_limit_key,
        order_key = p_order_key,
        order_blocks = p_order_blocks,
        -- Other arguments may put it under another order: it goes to the end of that one.
        order_no = CASE
            WHEN p_order_key = job.order_key THEN job.order_no
            WHEN p_order_key IS NOT NULL THEN nextval('aiopgq.orders')
        END,
        held = CASE
            WHEN p_order_key IS DISTINCT FROM job.order_key AND p_order_key IS NOT NULL THEN 'new order'
            WHEN job.held = 'unknown task' THEN job.held
            -- Whoever lets jobs in passes by one that is locked, as this one is now; so it is looked at again.
            WHEN p_order_key = job.order_key AND job.held IN ('order', 'new order') THEN 'new order'
            -- Nobody looks at the moment of those who wait for a limit or the end of a pause.
            WHEN due > now_ THEN NULL
            WHEN job.held = 'paused' THEN job.held
            WHEN p_limit_key IS NULL THEN NULL
            -- Inside it keeps its room, as long as it takes it from the same limit.
            WHEN p_limit_key = job.limit_key AND job.held IS NULL AND job.place IS NOT NULL THEN NULL
            ELSE 'new limit'
        END,
        -- In line it keeps its place as long as it is ready; a held one gets a place when it is freed.
        place = CASE
            WHEN due > now_ THEN NULL
            WHEN job.held = 'unknown task' THEN j.place
            ELSE coalesce(j.place, nextval('aiopgq.places'))
        END
    WHERE j.id = job.id
    RETURNING j.held, j.place INTO became;
    IF became.held IS NULL OR became.held IN ('new order', 'new limit') THEN
        PERFORM aiopgq.wake_queue(job.queue, due);
    END IF;
    -- The gates are not ours to lock; so the next of those it stood before is made to look as if it had just arrived.
    IF job.limit_key IS NOT NULL AND job.held IS NULL AND job.place IS NOT NULL
            AND (became.held IS NOT NULL OR became.place IS NULL) THEN
        PERFORM aiopgq.knock('limit', job.limit_key);
    END IF;
    IF job.order_key IS NOT NULL AND p_order_key IS DISTINCT FROM job.order_key THEN
        PERFORM aiopgq.knock('order', job.order_key);
    END IF;

    RETURN job.id;
END
$$;
COMMENT ON FUNCTION aiopgq.replace_job IS
    'Give the pending job of a key other arguments and another moment, or (debounce) a later moment only; '
    'NULL if there is none, if it is claimed, or if somebody has locked it.';

CREATE FUNCTION aiopgq.enqueue_unique_jobs(
    p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[],
    p_delays double precision[], p_run_ats timestamptz[], p_max_attempts integer[],
    p_timeouts double precision[], p_headers text[],
    p_limit_keys text[], p_order_keys text[], p_order_blocks boolean[],
    p_keys text[], p_on_conflicts text[], p_unique_fors double precision[], p_max_delays double precision[],
    p_once boolean
) RETURNS TABLE (number bigint, id uuid, verdict text, writer text)
LANGUAGE plpgsql SECURITY DEFINER
-- In force while the function runs and no longer: the caller's own setting is as it was when it returns.
SET lock_timeout = '5s'
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    started timestamptz := clock_timestamp();
    -- The setting above; all waits together take no longer than one may.
    patience interval := current_setting('lock_timeout')::interval;
    -- A mark for each key, as long as they are few; a transaction has room for some thousand locks.
    few CONSTANT boolean := cardinality(p_keys) <= 16;
    job record;
    standing uuid;
    said text;
    marked boolean := false;
    paused text[] := CASE WHEN pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN aiopgq.paused_names() END;
    numbers bigint[] := '{}';
    ids uuid[] := '{}';
    verdicts text[] := '{}';
BEGIN
    LOOP
    BEGIN
        FOR job IN
            SELECT c.*
            FROM (
                -- Places and numbers in the order of the arrays; OFFSET keeps them from being drawn after the sort below.
                SELECT
                    n.number, n.id, coalesce(n.queue, p_queues[1]) AS queue, coalesce(n.task, p_tasks[1]) AS task,
                    n.args::jsonb AS args, coalesce(n.priority, p_priorities[1]) AS priority,
                    coalesce(n.run_at, started + make_interval(secs => n.delay), started) AS run_at,
                    CASE WHEN coalesce(n.run_at, started + make_interval(secs => n.delay), started) <= started
                         THEN nextval('aiopgq.places') END AS place,
                    coalesce(n.max_attempts, p_max_attempts[1]) AS max_attempts,
                    make_interval(secs => n.timeout) AS timeout, n.headers::jsonb AS headers,
                    n.limit_key, n.order_key, n.order_blocks,
                    CASE WHEN n.order_key IS NOT NULL THEN nextval('aiopgq.orders') END AS order_no,
                    n.key, n.on_conflict, make_interval(secs => n.unique_for) AS unique_for, n.max_delay
                FROM unnest(
                    p_ids, p_queues, p_tasks, p_args, p_priorities, p_delays, p_run_ats, p_max_attempts, p_timeouts,
                    p_headers, p_limit_keys, p_order_keys, p_order_blocks, p_keys, p_on_conflicts, p_unique_fors, p_max_delays
                ) WITH ORDINALITY AS n (
                    id, queue, task, args, priority, delay, run_at, max_attempts, timeout,
                    headers, limit_key, order_key, order_blocks, key, on_conflict, unique_for, max_delay, number)
                OFFSET 0
            ) AS c
            -- Whoever writes several keys writes them in this order, so that nobody waits in a circle.
            ORDER BY c.key COLLATE "C" NULLS FIRST, c.task COLLATE "C", c.number
        LOOP
            said := NULL;
            standing := job.id;
            IF p_once AND EXISTS (
                SELECT 1 FROM aiopgq.archive a WHERE a.id = job.id
                UNION ALL SELECT 1 FROM aiopgq.dead_letters d WHERE d.id = job.id
            ) OR EXISTS (SELECT 1 FROM aiopgq.jobs j WHERE j.id = job.id) THEN
                said := 'known';
            END IF;
            WHILE said IS NULL LOOP
                PERFORM set_config('lock_timeout', greatest(
                    1, extract(epoch FROM started + patience - clock_timestamp()) * 1000)::integer::text, true);
                SELECT h.id INTO standing FROM aiopgq.unique_holds h
                WHERE h.unique_key = job.key AND h.task = job.task AND h.until > clock_timestamp();
                IF FOUND THEN
                    said := 'existing';
                    EXIT;
                END IF;

                -- Waits for a transaction that has written the same key, and goes on by what became of it.
                INSERT INTO aiopgq.jobs
                    (id, queue, task, args, priority, run_at, created_at, place, max_attempts, timeout, headers,
                     limit_key, order_key, order_no, order_blocks, held, unique_key, unique_for)
                VALUES
                    (job.id, job.queue, job.task, job.args, job.priority, job.run_at, started, job.place,
                     job.max_attempts, job.timeout, job.headers, job.limit_key, job.order_key, job.order_no,
                     job.order_blocks,
                     CASE WHEN job.order_key IS NOT NULL THEN 'new order'
                          WHEN job.place IS NULL THEN NULL
                          WHEN job.limit_key IS NOT NULL THEN 'new limit'
                          WHEN job.task = ANY (paused) THEN 'paused' END,
                     job.key, job.unique_for)
                ON CONFLICT DO NOTHING;
                IF FOUND THEN
                    said := 'new';
                    standing := job.id;
                    -- The one it waited for may have been completed, and its key be held since.
                    SELECT h.id INTO standing FROM aiopgq.unique_holds h
                    WHERE h.unique_key = job.key AND h.task = job.task AND h.until > clock_timestamp();
                    IF FOUND THEN
                        DELETE FROM aiopgq.jobs j WHERE j.id = job.id;
                        said := 'existing';
                    ELSE
                        standing := job.id;
                    END IF;
                    EXIT;
                END IF;

                IF job.key IS NOT NULL AND job.on_conflict <> 'skip' THEN
                    standing := aiopgq.replace_job(
                        job.task, job.key, job.on_conflict = 'debounce', job.args, job.headers, job.priority,
                        job.run_at, job.max_delay, job.limit_key, job.order_key, job.order_blocks);
                    IF standing IS NOT NULL THEN
                        said := CASE job.on_conflict WHEN 'debounce' THEN 'debounced' ELSE 'replaced' END;
                        EXIT;
                    END IF;
                    IF EXISTS (
                        SELECT 1 FROM aiopgq.jobs j
                        WHERE j.unique_key = job.key AND j.task = job.task AND j.status = 'pending'
                    ) THEN
                        -- Somebody is about to claim or change it; once he has written, the insert above waits for him.
                        IF clock_timestamp() > started + patience THEN
                            RAISE lock_not_available;
                        END IF;
                        PERFORM pg_sleep(0.001);
                        CONTINUE;
                    END IF;
                END IF;
                SELECT j.id INTO standing FROM aiopgq.jobs j WHERE j.unique_key = job.key AND j.task = job.task;
                IF FOUND THEN
                    said := 'existing';
                ELSIF EXISTS (SELECT 1 FROM aiopgq.jobs j WHERE j.id = job.id) THEN
                    said := 'known';
                    standing := job.id;
                END IF;
                -- Else it has ended between the two looks, and the key is free again.
            END LOOP;

            IF job.key IS NOT NULL AND said IN ('new', 'replaced', 'debounced') AND (few OR NOT marked) THEN
                marked := true;
                PERFORM pg_advisory_xact_lock_shared(
                    CASE WHEN few THEN aiopgq.key_mark(job.task, job.key) ELSE aiopgq.key_mark('', '') END);
            END IF;
            numbers := numbers || job.number;
            ids := ids || standing;
            verdicts := verdicts || said;
        END LOOP;

        RETURN QUERY SELECT u.number, u.id, u.verdict, NULL::text
        FROM unnest(numbers, ids, verdicts) AS u (number, id, verdict);
        RETURN;
    EXCEPTION
        -- Nothing of the batch is written, and the transaction of the caller can go on.
        WHEN lock_not_available THEN
            EXIT;
        WHEN deadlock_detected OR SQLSTATE 'AQ001' THEN
            EXIT WHEN clock_timestamp() > started + patience;
            numbers := '{}';
            ids := '{}';
            verdicts := '{}';
            marked := false;
    END;
    END LOOP;

    RETURN QUERY SELECT job.number, job.id, 'busy'::text, coalesce(aiopgq.key_writer(job.task, job.key), '{}')::text;
END
$$;
COMMENT ON FUNCTION aiopgq.enqueue_unique_jobs IS
    'As enqueue_jobs_once, for jobs with unique keys and others beside them: all or none. The verdict on each: new, '
    'known (its id), existing, replaced or debounced (its key; id is the job that has it); or one row, busy: another '
    'transaction (writer) has written the key and did not end within five seconds, and nothing was inserted.';

CREATE FUNCTION aiopgq.count_ready(p_queue text, p_limit integer) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT 1 FROM aiopgq.jobs j
            WHERE j.queue = p_queue AND j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL
            LIMIT p_limit
        ) AS ready
    );
END
$$;
COMMENT ON FUNCTION aiopgq.count_ready IS 'Count the jobs of a queue that are in line, up to p_limit.';

INSERT INTO aiopgq.rights (grantee, privileges, kind, name) VALUES
    ('producer', 'EXECUTE', 'FUNCTION', 'enqueue_unique_jobs'),
    ('producer', 'EXECUTE', 'FUNCTION', 'count_ready'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'unique_holds');
SELECT aiopgq.renew_grants();
