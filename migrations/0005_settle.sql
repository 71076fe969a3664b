-- 0005: settle, the last step of a job's life, and the marks a long run leaves on its way
-- phase: before
-- oldest code: 1
-- locks: none; everything is new
--
-- Every write to a claimed job names (id, claim_id): no row changed means the job belongs to somebody else.
-- Batches lock their rows in the order of id. Hash and merge joins are off because a plan made on an empty
-- table would later read the whole of it. For the same reason rows are found by "id = ANY (ARRAY[…])": by a plain
-- "=" the planner may join the other way round and read the index from end to end, which costs nothing in a table
-- that was empty when it was analyzed, and a second in one that has filled up since.

CREATE FUNCTION aiopgq.append_error(p_errors jsonb, p_entry jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN p_entry IS NULL THEN p_errors
    -- The first error and the latest ones tell most; fifty entries are kept.
    WHEN jsonb_array_length(coalesce(p_errors, '[]')) >= 50 THEN (p_errors - 1) || p_entry
    ELSE coalesce(p_errors, '[]') || p_entry
END;

CREATE FUNCTION aiopgq.complete_jobs(
    p_ids uuid[], p_claims uuid[], p_results text[], p_keep boolean, p_let_in boolean DEFAULT true
) RETURNS SETOF uuid
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    limited text[] := CASE WHEN pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN aiopgq.limited_queues() END;
    done uuid[];
    one uuid;
    orders text[];
    limits text[];
    queues text[];
BEGIN
    IF p_keep THEN
        WITH ended AS (
            SELECT * FROM unnest(p_ids, p_claims, p_results) AS e (id, claim_id, result) ORDER BY e.id
        ), gone AS (
            DELETE FROM aiopgq.jobs j USING ended e
            WHERE j.id = ANY (ARRAY[e.id]) AND j.claim_id = e.claim_id
            -- First what is read of each row more than once.
            RETURNING j.id, j.order_key, j.limit_key, j.queue, j.unique_for, j.unique_key, j.worker_id, j.run_at,
                j.created_at, j.claimed_at, j.started_at, j.attempts, j.max_attempts, j.events_count, j.progress,
                j.priority, j.task, j.args, j.headers, j.current_stage, j.last_error, j.errors, e.result
        ), hold AS (
            INSERT INTO aiopgq.unique_holds AS h (unique_key, task, id, until)
            SELECT g.unique_key, g.task, g.id, now_ + g.unique_for FROM gone g WHERE g.unique_for IS NOT NULL AND g.unique_key IS NOT NULL
            ON CONFLICT (unique_key, task) DO UPDATE SET (id, until) = (excluded.id, excluded.until)
        ), kept AS (
            INSERT INTO aiopgq.archive
                (id, worker_id, run_at, created_at, claimed_at, started_at, completed_at, attempts,
                 max_attempts, events_count, progress, priority, status, queue, task, args, headers,
                 current_stage, last_error, errors, result)
            SELECT
                g.id, g.worker_id, g.run_at, g.created_at, g.claimed_at, g.started_at, now_, g.attempts,
                g.max_attempts, g.events_count, g.progress, g.priority, 'completed', g.queue, g.task, g.args, g.headers,
                g.current_stage, g.last_error, g.errors, g.result::jsonb
            FROM gone g
        )
        SELECT array_agg(g.id), array_agg(g.order_key) FILTER (WHERE g.order_key IS NOT NULL),
            array_agg(g.limit_key) FILTER (WHERE g.limit_key IS NOT NULL),
            array_agg(g.queue) FILTER (WHERE g.queue = ANY (limited))
        INTO done, orders, limits, queues FROM gone g;
    ELSE
        WITH gone AS (
            DELETE FROM aiopgq.jobs j
            USING (SELECT * FROM unnest(p_ids, p_claims) AS e (id, claim_id) ORDER BY e.id) AS e
            WHERE j.id = ANY (ARRAY[e.id]) AND j.claim_id = e.claim_id
            RETURNING j.id, j.task, j.queue, j.order_key, j.limit_key, j.unique_key, j.unique_for
        ), hold AS (
            INSERT INTO aiopgq.unique_holds AS h (unique_key, task, id, until)
            SELECT g.unique_key, g.task, g.id, now_ + g.unique_for FROM gone g WHERE g.unique_for IS NOT NULL AND g.unique_key IS NOT NULL
            ON CONFLICT (unique_key, task) DO UPDATE SET (id, until) = (excluded.id, excluded.until)
        )
        SELECT array_agg(g.id), array_agg(g.order_key) FILTER (WHERE g.order_key IS NOT NULL),
            array_agg(g.limit_key) FILTER (WHERE g.limit_key IS NOT NULL),
            array_agg(g.queue) FILTER (WHERE g.queue = ANY (limited))
        INTO done, orders, limits, queues FROM gone g;
    END IF;
    PERFORM aiopgq.tell_waiters(p_ids);
    IF p_let_in AND (orders IS NOT NULL OR limits IS NOT NULL) THEN
        PERFORM aiopgq.let_in(orders, limits);
    END IF;
    IF queues IS NOT NULL THEN
        PERFORM aiopgq.wake_queues(queues);
    END IF;

    FOREACH one IN ARRAY coalesce(done, '{}') LOOP
        RETURN NEXT one;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.complete_jobs IS
    'Move completed jobs to the archive (or drop them if not p_keep); returns the ids that were still ours. '
    'A key that is unique for a period after completion is held from here on. '
    'p_let_in: let jobs in that waited for them, which locks their gates until the transaction ends.';

CREATE FUNCTION aiopgq.cancel_jobs(p_ids uuid[], p_claims uuid[], p_reasons text[], p_keep boolean)
RETURNS SETOF uuid
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    limited text[] := CASE WHEN pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN aiopgq.limited_queues() END;
    done uuid[];
    one uuid;
    orders text[];
    limits text[];
    queues text[];
BEGIN
    WITH ended AS (
        SELECT * FROM unnest(p_ids, p_claims, p_reasons) AS e (id, claim_id, reason) ORDER BY e.id
    ), gone AS (
        DELETE FROM aiopgq.jobs j USING ended e
        -- A NULL claim_id means a pending job: it may be cancelled by anybody.
        WHERE j.id = ANY (ARRAY[e.id]) AND j.claim_id IS NOT DISTINCT FROM e.claim_id
        RETURNING j.id, j.worker_id, j.run_at, j.created_at, j.claimed_at, j.started_at, j.attempts,
            j.max_attempts, j.events_count, j.progress, j.priority, j.queue, j.task, j.args, j.headers,
            j.current_stage, j.last_error, j.errors, j.order_key, j.limit_key, e.reason
    ), kept AS (
        INSERT INTO aiopgq.archive
            (id, worker_id, run_at, created_at, claimed_at, started_at, completed_at, attempts,
             max_attempts, events_count, progress, priority, status, queue, task, args, headers,
             current_stage, last_error, errors)
        SELECT
            g.id, g.worker_id, g.run_at, g.created_at, g.claimed_at, g.started_at, now_, g.attempts,
            g.max_attempts, g.events_count, g.progress, g.priority, 'cancelled', g.queue, g.task, g.args, g.headers,
            g.current_stage, coalesce(g.reason, g.last_error), g.errors
        FROM gone g WHERE p_keep
    )
    SELECT array_agg(g.id), array_agg(g.order_key) FILTER (WHERE g.order_key IS NOT NULL),
        array_agg(g.limit_key) FILTER (WHERE g.limit_key IS NOT NULL),
        array_agg(g.queue) FILTER (WHERE g.queue = ANY (limited))
    INTO done, orders, limits, queues FROM gone g;
    PERFORM aiopgq.tell_waiters(p_ids);
    IF orders IS NOT NULL OR limits IS NOT NULL THEN
        PERFORM aiopgq.let_in(orders, limits);
    END IF;
    IF queues IS NOT NULL THEN
        PERFORM aiopgq.wake_queues(queues);
    END IF;

    FOREACH one IN ARRAY coalesce(done, '{}') LOOP
        RETURN NEXT one;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.cancel_jobs IS
    'Move cancelled jobs to the archive: claimed ones by their claim_id, pending ones by NULL.';

CREATE FUNCTION aiopgq.bury_jobs(p_ids uuid[], p_claims uuid[], p_reasons text[], p_errors text[])
RETURNS SETOF uuid
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    limited text[] := CASE WHEN pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN aiopgq.limited_queues() END;
    done uuid[];
    one uuid;
    orders text[];
    limits text[];
    queues text[];
BEGIN
    WITH ended AS (
        SELECT * FROM unnest(p_ids, p_claims, p_reasons, p_errors) AS e (id, claim_id, reason, error) ORDER BY e.id
    ), gone AS (
        DELETE FROM aiopgq.jobs j USING ended e
        WHERE j.id = ANY (ARRAY[e.id]) AND j.claim_id = e.claim_id
        RETURNING j.id, j.worker_id, j.run_at, j.created_at, j.claimed_at, j.started_at, j.timeout, j.attempts,
            j.max_attempts, j.events_count, j.progress, j.priority, j.queue, j.task, j.args, j.headers,
            j.current_stage, j.errors, j.limit_key, j.order_no, j.order_key, j.order_blocks, j.unique_key, j.unique_for,
            e.reason, e.error
    ), kept AS (
        INSERT INTO aiopgq.dead_letters
            (id, worker_id, run_at, created_at, claimed_at, started_at, timeout, attempts, max_attempts,
             events_count, progress, priority, queue, task, args, headers, current_stage, last_error, errors, limit_key,
             order_no, order_key, order_blocks, unique_key, unique_for)
        SELECT
            g.id, g.worker_id, g.run_at, g.created_at, g.claimed_at, g.started_at, g.timeout, g.attempts, g.max_attempts,
            g.events_count, g.progress, g.priority, g.queue, g.task, g.args, g.headers, g.current_stage, g.reason,
            aiopgq.append_error(g.errors, g.error::jsonb), g.limit_key, g.order_no, g.order_key, g.order_blocks,
            g.unique_key, g.unique_for
        FROM gone g
        -- Only a row inserted by hand has the id of a dead letter; the newer story replaces the older one.
        ON CONFLICT (id) DO UPDATE SET
            (worker_id, run_at, created_at, claimed_at, started_at, failed_at, timeout, attempts, max_attempts,
             events_count, progress, priority, queue, task, args, headers, current_stage, last_error, errors, limit_key,
             order_no, order_key, order_blocks, unique_key, unique_for)
            = (excluded.worker_id, excluded.run_at, excluded.created_at, excluded.claimed_at, excluded.started_at,
               excluded.failed_at, excluded.timeout, excluded.attempts, excluded.max_attempts, excluded.events_count,
               excluded.progress, excluded.priority, excluded.queue, excluded.task, excluded.args, excluded.headers,
               excluded.current_stage, excluded.last_error, excluded.errors, excluded.limit_key,
               excluded.order_no, excluded.order_key, excluded.order_blocks, excluded.unique_key, excluded.unique_for)
    )
    SELECT array_agg(g.id), array_agg(g.order_key) FILTER (WHERE g.order_key IS NOT NULL),
        array_agg(g.limit_key) FILTER (WHERE g.limit_key IS NOT NULL),
        array_agg(g.queue) FILTER (WHERE g.queue = ANY (limited))
    INTO done, orders, limits, queues FROM gone g;
    PERFORM aiopgq.tell_waiters(p_ids);
    IF orders IS NOT NULL OR limits IS NOT NULL THEN
        PERFORM aiopgq.let_in(orders, limits);
    END IF;
    IF queues IS NOT NULL THEN
        PERFORM aiopgq.wake_queues(queues);
    END IF;

    FOREACH one IN ARRAY coalesce(done, '{}') LOOP
        RETURN NEXT one;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.bury_jobs IS 'Move failed jobs to the dead letters with the error of their last attempt.';

CREATE FUNCTION aiopgq.reschedule_jobs(
    p_ids uuid[], p_claims uuid[], p_delays double precision[], p_refunds boolean[],
    p_reasons text[], p_errors text[], p_keep boolean
) RETURNS SETOF uuid
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    unwanted uuid[];
    line record;
    limits text[];
    limited text[] := CASE WHEN pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN aiopgq.limited_queues() END;
BEGIN
    -- Locked first and in order; whoever asked for a cancel before this has it now, later ones wait for us.
    SELECT array_agg(locked.id) FILTER (WHERE locked.cancel_requested),
        array_agg(locked.limit_key) FILTER (WHERE locked.limit_key IS NOT NULL)
    INTO unwanted, limits
    FROM (
        SELECT j.id, j.cancel_requested, j.limit_key
        FROM (SELECT * FROM unnest(p_ids, p_claims) AS e (id, claim_id) ORDER BY e.id) AS e
        JOIN aiopgq.jobs j ON j.id = ANY (ARRAY[e.id]) AND j.claim_id = e.claim_id
        FOR UPDATE OF j
    ) AS locked;

    IF unwanted IS NOT NULL THEN
        -- All gates of the batch at once and in order, not those of the cancelled jobs first.
        IF limits IS NOT NULL THEN
            PERFORM aiopgq.lock_gates('order ', ARRAY(SELECT j.order_key FROM aiopgq.jobs j WHERE j.id = ANY (unwanted)));
            PERFORM aiopgq.lock_gates('limit ', limits);
        END IF;
        RETURN QUERY
        SELECT aiopgq.cancel_jobs(array_agg(e.id), array_agg(e.claim_id), array_agg(e.reason), p_keep)
        FROM unnest(p_ids, p_claims, p_reasons) AS e (id, claim_id, reason)
        WHERE e.id = ANY (unwanted);
    END IF;

    FOR line IN
        UPDATE aiopgq.jobs j
        SET status = 'pending', worker_id = NULL, claim_id = NULL, claimed_at = NULL, started_at = NULL,
            progress = NULL, current_stage = NULL,
            attempts = j.attempts - e.refund::integer,
            run_at = coalesce(now_ + make_interval(secs => e.delay), j.run_at),
            place = CASE WHEN e.delay IS NULL THEN j.place WHEN e.delay <= 0 THEN nextval('aiopgq.places') END,
            -- Its room is free for others; while it waits for its moment it takes none. Released, it keeps it.
            held = CASE WHEN e.delay <= 0 AND j.limit_key IS NOT NULL THEN 'limit' END,
            last_error = coalesce(e.reason, j.last_error),
            errors = aiopgq.append_error(j.errors, e.error::jsonb)
        FROM (
            SELECT * FROM unnest(p_ids, p_claims, p_delays, p_refunds, p_reasons, p_errors)
                AS e (id, claim_id, delay, refund, reason, error)
            ORDER BY e.id
        ) AS e
        WHERE j.id = ANY (ARRAY[e.id]) AND j.claim_id = e.claim_id
        RETURNING j.id, j.queue, j.run_at
    LOOP
        -- Equal notifications of one transaction fold into one. In a queue with a limit another may start now.
        PERFORM aiopgq.wake_queue(line.queue, CASE WHEN line.queue = ANY (limited) THEN now_ ELSE line.run_at END);
        RETURN NEXT line.id;
    END LOOP;
    IF limits IS NOT NULL THEN
        PERFORM aiopgq.let_in(NULL, limits);
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.reschedule_jobs IS
    'The way back to pending: retry (an error, no refund), snooze and release (refund gives the attempt back). '
    'A delay that is NULL leaves a job its place: it has not begun. '
    'A job whose cancel was requested is archived as cancelled instead.';

CREATE FUNCTION aiopgq.mark_jobs(
    p_ids uuid[], p_claims uuid[], p_elapsed double precision[], p_progress real[], p_stages text[], p_events integer[]
) RETURNS TABLE (id uuid, cancel_requested boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    UPDATE aiopgq.jobs j
    SET status = 'running',
        started_at = coalesce(j.started_at, clock_timestamp() - make_interval(secs => m.elapsed)),
        progress = coalesce(m.progress, j.progress),
        current_stage = coalesce(m.stage, j.current_stage),
        events_count = j.events_count + m.events
    FROM (
        SELECT * FROM unnest(p_ids, p_claims, p_elapsed, p_progress, p_stages, p_events)
            AS m (id, claim_id, elapsed, progress, stage, events)
        ORDER BY m.id
    ) AS m
    WHERE j.id = ANY (ARRAY[m.id]) AND j.claim_id = m.claim_id
    RETURNING j.id, j.cancel_requested;
END
$$;
COMMENT ON FUNCTION aiopgq.mark_jobs IS
    'Mark long runs as running, with their progress; returns those that are still ours.';

CREATE FUNCTION aiopgq.cancel_job(p_id uuid) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    -- Between the two looks the job may change sides; one of them hits, or the job is gone.
    LOOP
        IF EXISTS (SELECT 1 FROM aiopgq.cancel_jobs(ARRAY[p_id], ARRAY[NULL::uuid], ARRAY['cancelled'], true)) THEN
            RETURN 'cancelled';
        END IF;
        UPDATE aiopgq.jobs SET cancel_requested = true WHERE id = p_id AND status <> 'pending';
        IF FOUND THEN
            PERFORM pg_notify(aiopgq.channel() || ':cancel', p_id::text);
            RETURN 'requested';
        END IF;
        IF NOT EXISTS (SELECT 1 FROM aiopgq.jobs WHERE id = p_id) THEN
            RETURN CASE WHEN EXISTS (SELECT 1 FROM aiopgq.all_jobs WHERE id = p_id) THEN 'finished' ELSE 'not found' END;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.cancel_job IS
    'Cancel a job: a pending one at once, a claimed one by asking its worker. '
    'Returns cancelled, requested, finished or not found.';

CREATE FUNCTION aiopgq.replayed_as(p_order_key text, p_limit_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    -- It has its old number: none of those behind it may be let in before it.
    WHEN p_order_key IS NOT NULL THEN 'order'
    WHEN p_limit_key IS NOT NULL THEN 'new limit'
END;
COMMENT ON FUNCTION aiopgq.replayed_as IS 'How a replayed dead letter is held until it is let in.';

CREATE FUNCTION aiopgq.replay_dead_letters(p_ids uuid[]) RETURNS TABLE (id uuid, keyed_by uuid)
LANGUAGE plpgsql
SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    letter aiopgq.dead_letters;
    orders text[];
BEGIN
    -- Locked first and in order; what was locked by somebody faster is gone.
    PERFORM 1 FROM (SELECT DISTINCT e.id FROM unnest(p_ids) AS e (id) ORDER BY e.id) AS e
    JOIN aiopgq.dead_letters d ON d.id = ANY (ARRAY[e.id])
    FOR UPDATE OF d;
    orders := ARRAY(
        SELECT d.order_key FROM aiopgq.dead_letters d WHERE d.id = ANY (p_ids) AND d.order_key IS NOT NULL);

    RETURN QUERY
    WITH gone AS (
        DELETE FROM aiopgq.dead_letters d
        USING (SELECT * FROM unnest(p_ids) AS e (id) ORDER BY e.id) AS e
        WHERE d.id = ANY (ARRAY[e.id]) AND d.unique_key IS NULL
        RETURNING d.*
    )
    INSERT INTO aiopgq.jobs AS j
        (id, queue, task, args, priority, run_at, created_at, place, max_attempts, timeout, headers,
         last_error, errors, limit_key, order_no, order_key, order_blocks, held)
    SELECT
        g.id, g.queue, g.task, g.args, g.priority, clock_timestamp(), g.created_at, nextval('aiopgq.places'),
        g.max_attempts, g.timeout, g.headers, g.last_error, g.errors, g.limit_key, g.order_no, g.order_key,
        g.order_blocks, aiopgq.replayed_as(g.order_key, g.limit_key)
    FROM gone g
    RETURNING j.id, NULL::uuid;

    -- Keys are written in this order everywhere.
    FOR letter IN
        SELECT d.* FROM aiopgq.dead_letters d WHERE d.id = ANY (p_ids) AND d.unique_key IS NOT NULL
        ORDER BY d.unique_key COLLATE "C", d.task COLLATE "C", d.failed_at
    LOOP
        id := letter.id;
        LOOP
            INSERT INTO aiopgq.jobs
                (id, queue, task, args, priority, run_at, created_at, place, max_attempts, timeout, headers,
                 last_error, errors, limit_key, order_no, order_key, order_blocks, held, unique_key, unique_for)
            VALUES
                (letter.id, letter.queue, letter.task, letter.args, letter.priority, clock_timestamp(),
                 letter.created_at, nextval('aiopgq.places'), letter.max_attempts, letter.timeout, letter.headers,
                 letter.last_error, letter.errors, letter.limit_key, letter.order_no, letter.order_key,
                 letter.order_blocks, aiopgq.replayed_as(letter.order_key, letter.limit_key),
                 letter.unique_key, letter.unique_for)
            ON CONFLICT (unique_key, task) WHERE unique_key IS NOT NULL DO NOTHING;
            IF FOUND THEN
                DELETE FROM aiopgq.dead_letters d WHERE d.id = letter.id;
                keyed_by := NULL;
                EXIT;
            END IF;
            SELECT j.id INTO keyed_by FROM aiopgq.jobs j
            WHERE j.unique_key = letter.unique_key AND j.task = letter.task;
            -- Else that job has ended between the two looks.
            EXIT WHEN FOUND;
        END LOOP;
        RETURN NEXT;
    END LOOP;
    IF orders <> '{}' THEN
        PERFORM aiopgq.let_in(orders, NULL);
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.replay_dead_letters IS
    'Make dead letters pending jobs again, with all their attempts and their history. keyed_by: another job has its '
    'unique key, so this one stays a dead letter.';
