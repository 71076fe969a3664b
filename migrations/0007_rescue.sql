-- 0007: rescue: take jobs back from incarnations that are dead
-- phase: before
-- oldest code: 1
-- locks: none; everything is new
--
-- Who is dead is decided outside: a parent that saw its child end, or a worker that saw a beat stand still for a
-- whole lease on its own clock. Here it becomes a fact, once and for ever, in the same transaction in which the jobs
-- change hands.

CREATE FUNCTION aiopgq.run_lock(p_id uuid, p_claim uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN hashtextextended(p_id::text || p_claim::text, 0);
COMMENT ON FUNCTION aiopgq.run_lock IS
    'The advisory lock that the transaction of a run holds, so that its backend can be found, through a pooler too.';

CREATE FUNCTION aiopgq.end_transactions(p_ids uuid[], p_claims uuid[]) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    backend integer;
    ended integer := 0;
BEGIN
    FOR backend IN
        SELECT l.pid
        FROM pg_locks l
        JOIN unnest(p_ids, p_claims) AS e (id, claim_id)
            ON ((l.classid::bigint << 32) | l.objid::bigint) = aiopgq.run_lock(e.id, e.claim_id)
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    LOOP
        BEGIN
            -- Wait until it is gone, a second at most: its locks would stop the next run.
            ended := ended + pg_terminate_backend(backend, 1000)::integer;
        EXCEPTION WHEN insufficient_privilege THEN
            -- A backend of another role goes when its client does; the fence holds whatever it still does.
            RAISE LOG 'aiopgq: may not terminate backend %, whose run has lost its job', backend;
        END;
    END LOOP;

    RETURN ended;
END
$$;
COMMENT ON FUNCTION aiopgq.end_transactions IS
    'End the transactions that runs of these claims have left open, with all their locks; returns how many there were.';

CREATE FUNCTION aiopgq.begin_run(p_id uuid, p_claim uuid) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(aiopgq.run_lock(p_id, p_claim));

    RETURN EXISTS (SELECT 1 FROM aiopgq.jobs j WHERE j.id = p_id AND j.claim_id = p_claim);
END
$$;
COMMENT ON FUNCTION aiopgq.begin_run IS
    'Tell by a lock whose transaction this is, until it ends. False: the job belongs to somebody else already.';

CREATE FUNCTION aiopgq.still_claimed(p_id uuid, p_claim uuid, p_terminate boolean) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '1s'
AS $$
BEGIN
    IF p_terminate THEN
        PERFORM aiopgq.end_transactions(ARRAY[p_id], ARRAY[p_claim]);
    END IF;
    -- With the lock, the answer is about a transaction that has ended.
    PERFORM 1 FROM aiopgq.jobs j WHERE j.id = p_id AND j.claim_id = p_claim FOR UPDATE;

    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION aiopgq.still_claimed IS
    'Tell whether a run still owns its job, once the transaction that may have settled it has ended. '
    'p_terminate: end that transaction, because its client has lost the connection.';

CREATE FUNCTION aiopgq.complete_within(p_id uuid, p_claim uuid, p_result text, p_keep boolean) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(aiopgq.run_lock(p_id, p_claim));

    RETURN EXISTS (SELECT 1 FROM aiopgq.complete_jobs(ARRAY[p_id], ARRAY[p_claim], ARRAY[p_result], p_keep, false));
END
$$;
COMMENT ON FUNCTION aiopgq.complete_within IS
    'Complete a job inside the transaction of its handler. False: the job belongs to somebody else.';

CREATE FUNCTION aiopgq.backoff(p_attempt integer) RETURNS double precision
LANGUAGE sql VOLATILE
RETURN least(3600, power(4, least(greatest(p_attempt, 1), 10) - 1)) * (0.8 + 0.4 * random());
COMMENT ON FUNCTION aiopgq.backoff IS
    'The default backoff of tasks: one second, then four times as long each, at most an hour, a fifth more or less.';

CREATE FUNCTION aiopgq.take_back_jobs(p_worker uuid, p_keep boolean) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    who text := coalesce((SELECT w.name FROM aiopgq.workers w WHERE w.id = p_worker), p_worker::text);
    lost record;
    spent uuid[] := '{}';
    spent_claims uuid[] := '{}';
    spent_errors text[] := '{}';
    again uuid[] := '{}';
    again_claims uuid[] := '{}';
    again_errors text[] := '{}';
    delays double precision[] := '{}';
    entry text;
BEGIN
    -- First what may still hold locks on these jobs, and on rows of the application that the next runs need.
    PERFORM aiopgq.end_transactions(array_agg(j.id), array_agg(j.claim_id))
    FROM aiopgq.jobs j WHERE j.worker_id = p_worker HAVING count(*) > 0;
    FOR lost IN
        SELECT j.id, j.claim_id, j.attempts, j.max_attempts, j.cancel_requested
        FROM aiopgq.jobs j
        -- The ids first: to have them in order, the planner may read all jobs.
        WHERE j.id = ANY (ARRAY(SELECT o.id FROM aiopgq.jobs o WHERE o.worker_id = p_worker))
          AND j.worker_id = p_worker
        ORDER BY j.id FOR UPDATE
    LOOP
        entry := jsonb_build_object(
            'at', clock_timestamp(), 'attempt', lost.attempts, 'error', 'worker lost', 'traceback', NULL, 'worker', who);
        -- The attempt is spent: a job that kills its worker stops after max_attempts starts.
        IF lost.attempts >= lost.max_attempts AND NOT lost.cancel_requested THEN
            spent := spent || lost.id;
            spent_claims := spent_claims || lost.claim_id;
            spent_errors := spent_errors || entry;
        ELSE
            again := again || lost.id;
            again_claims := again_claims || lost.claim_id;
            again_errors := again_errors || entry;
            delays := delays || aiopgq.backoff(lost.attempts);
        END IF;
    END LOOP;

    -- All gates at once and in order, not those of the buried first and then those of the others.
    IF EXISTS (SELECT 1 FROM aiopgq.jobs j WHERE j.worker_id = p_worker AND num_nonnulls(j.order_key, j.limit_key) > 0) THEN
        PERFORM aiopgq.lock_gates('order ', ARRAY(SELECT j.order_key FROM aiopgq.jobs j WHERE j.worker_id = p_worker));
        PERFORM aiopgq.lock_gates('limit ', ARRAY(SELECT j.limit_key FROM aiopgq.jobs j WHERE j.worker_id = p_worker));
    END IF;
    IF spent <> '{}' THEN
        PERFORM aiopgq.bury_jobs(spent, spent_claims, array_fill('worker lost'::text, ARRAY[cardinality(spent)]), spent_errors);
    END IF;
    IF again <> '{}' THEN
        PERFORM aiopgq.reschedule_jobs(
            again, again_claims, delays, array_fill(false, ARRAY[cardinality(again)]),
            array_fill('worker lost'::text, ARRAY[cardinality(again)]), again_errors, p_keep);
    END IF;

    RETURN cardinality(spent) + cardinality(again);
END
$$;
COMMENT ON FUNCTION aiopgq.take_back_jobs IS
    'Take all jobs of an incarnation: back to pending with backoff, or to the dead letters if no attempt is left.';

CREATE FUNCTION aiopgq.rescue_worker(p_worker uuid, p_beat bigint, p_keep boolean) RETURNS integer
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE aiopgq.workers w SET dead_at = clock_timestamp()
    WHERE w.id = p_worker AND w.beat = p_beat AND w.dead_at IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;

    RETURN aiopgq.take_back_jobs(p_worker, p_keep);
END
$$;
COMMENT ON FUNCTION aiopgq.rescue_worker IS
    'Declare an incarnation dead if its beat still stands at p_beat, and take its jobs; NULL if it has beaten since.';

CREATE FUNCTION aiopgq.bury_worker(p_parent uuid, p_pid integer, p_keep boolean) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    child uuid;
    taken integer := 0;
BEGIN
    FOR child IN
        UPDATE aiopgq.workers w SET dead_at = clock_timestamp()
        WHERE w.parent = p_parent AND w.pid = p_pid AND w.dead_at IS NULL
        RETURNING w.id
    LOOP
        taken := taken + aiopgq.take_back_jobs(child, p_keep);
    END LOOP;

    RETURN taken;
END
$$;
COMMENT ON FUNCTION aiopgq.bury_worker IS
    'Declare the incarnations of a child process dead, of which its parent knows that it has ended, and take their jobs.';

CREATE FUNCTION aiopgq.rescue_orphans(p_keep boolean) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    orphaned uuid;
    taken integer := 0;
BEGIN
    -- One rescuer at a time; the others find the work done.
    IF NOT pg_try_advisory_xact_lock('aiopgq.workers'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    FOR orphaned IN
        -- One index probe per owner instead of reading all claimed jobs.
        WITH RECURSIVE owner AS (
            (SELECT j.worker_id FROM aiopgq.jobs j WHERE j.worker_id IS NOT NULL ORDER BY j.worker_id LIMIT 1)
            UNION ALL
            SELECT (SELECT j.worker_id FROM aiopgq.jobs j
                    WHERE j.worker_id > owner.worker_id ORDER BY j.worker_id LIMIT 1)
            FROM owner WHERE owner.worker_id IS NOT NULL
        )
        SELECT o.worker_id FROM owner o
        WHERE o.worker_id IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM aiopgq.workers w WHERE w.id = o.worker_id AND w.dead_at IS NULL)
    LOOP
        taken := taken + aiopgq.take_back_jobs(orphaned, p_keep);
    END LOOP;

    RETURN taken;
END
$$;
COMMENT ON FUNCTION aiopgq.rescue_orphans IS
    'Take the jobs whose incarnation is dead or unknown: claims that were committed after their worker was given up.';
