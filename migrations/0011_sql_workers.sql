-- 0011: the door for other languages: a whole worker in SQL, one job at a time; draining a worker from outside
-- phase: before
-- oldest code: 1
-- locks: workers, for a moment: a column with a constant default
--
-- Signatures that a person types, over the functions the Python worker calls: the same fences, statuses and wakes.
-- docs/sql-api.md shows each of them at work.

ALTER TABLE aiopgq.workers ADD COLUMN drain_requested boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN aiopgq.workers.drain_requested IS 'Somebody asked it to claim no more, finish what runs, and end.';

-- Unlogged on purpose: after a crash of PostgreSQL nobody has seen anything, and every observation starts anew.
CREATE UNLOGGED TABLE aiopgq.seen_beats (
    observer uuid NOT NULL,
    worker uuid NOT NULL,
    beat bigint NOT NULL,
    since timestamptz NOT NULL,
    read_at timestamptz NOT NULL,
    CONSTRAINT seen_beats_key PRIMARY KEY (observer, worker)
);
COMMENT ON TABLE aiopgq.seen_beats IS
    'What each worker written in SQL has itself seen of the beats of the others; since when a beat stands still.';

CREATE FUNCTION aiopgq.register_worker(
    p_name text, p_queues text[], p_tasks text[], p_concurrency integer DEFAULT 1,
    p_lease interval DEFAULT '60 seconds', p_pid integer DEFAULT 0
) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    worker uuid := gen_random_uuid();
BEGIN
    IF p_lease < interval '2 seconds' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a lease of %s is too short for beats to fit into it', p_lease),
            HINT = 'Give at least 2 seconds; the default is 60.';
    END IF;
    PERFORM aiopgq.register_worker(
        worker, NULL, p_name, coalesce(host(inet_client_addr()), 'local'), p_pid, 'sql', p_queues, p_tasks,
        p_concurrency, extract(epoch FROM p_lease)::double precision, '{}');
    WHILE aiopgq.free_known_jobs(p_tasks, 1000) = 1000 LOOP
    END LOOP;

    RETURN worker;
END
$$;
COMMENT ON FUNCTION aiopgq.register_worker(text, text[], text[], integer, interval, integer) IS
    'Announce a worker in another language; returns its id, which is never used again. It beats at least four times a lease.';

CREATE FUNCTION aiopgq.claim_job_batch(p_worker uuid, p_limit integer DEFAULT 1)
RETURNS TABLE (
    id uuid, claim_id uuid, task text, queue text, args jsonb, headers jsonb, attempt integer, max_attempts integer,
    timeout interval, created_at timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    myself record;
    claim uuid := gen_random_uuid();
BEGIN
    SELECT w.queues, w.tasks, w.draining OR w.drain_requested AS drains INTO myself
    FROM aiopgq.workers w WHERE w.id = p_worker AND w.dead_at IS NULL;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('worker %s is not registered, or was declared dead', p_worker),
            HINT = 'Stop what it runs: others may run it by now. Then register again, for a new id.';
    END IF;
    IF myself.drains THEN
        RETURN;
    END IF;

    PERFORM aiopgq.promote_jobs('1900-01-01 00:00:00+00', greatest(p_limit, 100), myself.tasks);
    RETURN QUERY
    SELECT c.id, claim, c.task, c.queue, c.args::jsonb, c.headers::jsonb, c.attempts, c.max_attempts, c.timeout,
        c.created_at
    FROM aiopgq.claim_lanes(
        p_worker, claim, p_limit, myself.tasks, myself.queues,
        array_fill(p_limit, ARRAY[cardinality(myself.queues)]), NULL, NULL, NULL) c
    ORDER BY c.priority DESC, c.place;
END
$$;
COMMENT ON FUNCTION aiopgq.claim_job_batch IS
    'Claim up to p_limit due jobs of the queues and tasks the worker has registered; commit before running them. '
    'Nothing while it drains; an error if it is dead.';

CREATE FUNCTION aiopgq.let_in_later() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('aiopgq.letting_in', 'later', true);
END
$$;
COMMENT ON FUNCTION aiopgq.let_in_later IS
    'This transaction is somebody''s own and may go on: those who wait for its jobs are let in when it has ended.';

CREATE FUNCTION aiopgq.complete_job(p_id uuid, p_claim uuid, p_result jsonb DEFAULT NULL, p_keep boolean DEFAULT true)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM aiopgq.let_in_later();
    BEGIN
        RETURN EXISTS (SELECT 1 FROM aiopgq.complete_jobs(ARRAY[p_id], ARRAY[p_claim], ARRAY[p_result::text], p_keep));
    EXCEPTION WHEN check_violation THEN
        -- No worker has looked after the archive for two weeks, or there is none but those in SQL.
        PERFORM aiopgq.make_partitions(14);
    END;

    RETURN EXISTS (SELECT 1 FROM aiopgq.complete_jobs(ARRAY[p_id], ARRAY[p_claim], ARRAY[p_result::text], p_keep));
END
$$;
COMMENT ON FUNCTION aiopgq.complete_job IS
    'Complete a claimed job. False: it belongs to somebody else by now, and nothing was written.';

CREATE FUNCTION aiopgq.cancel_job(p_id uuid, p_claim uuid, p_reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM aiopgq.let_in_later();
    IF p_claim IS NULL THEN
        RAISE null_value_not_allowed USING
            MESSAGE = 'a worker cancels a job by its claim_id',
            HINT = 'Who is no worker asks for the end of a job by cancel_job(id).';
    END IF;
    BEGIN
        RETURN EXISTS (SELECT 1 FROM aiopgq.cancel_jobs(ARRAY[p_id], ARRAY[p_claim], ARRAY[p_reason], true));
    EXCEPTION WHEN check_violation THEN
        PERFORM aiopgq.make_partitions(14);
    END;

    RETURN EXISTS (SELECT 1 FROM aiopgq.cancel_jobs(ARRAY[p_id], ARRAY[p_claim], ARRAY[p_reason], true));
END
$$;
COMMENT ON FUNCTION aiopgq.cancel_job(uuid, uuid, text) IS
    'End a claimed job as cancelled, by its worker. False: it belongs to somebody else by now.';

CREATE FUNCTION aiopgq.return_job(
    p_id uuid, p_claim uuid, p_delay interval, p_refund boolean, p_reason text, p_error text
) RETURNS text
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    unwanted boolean;
    seconds double precision := greatest(extract(epoch FROM p_delay)::double precision, 0);
BEGIN
    PERFORM aiopgq.let_in_later();
    SELECT j.cancel_requested INTO unwanted
    FROM aiopgq.jobs j WHERE j.id = p_id AND j.claim_id = p_claim FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF unwanted THEN
        PERFORM aiopgq.cancel_job(p_id, p_claim, p_reason);
        RETURN 'cancelled';
    END IF;
    PERFORM aiopgq.reschedule_jobs(
        ARRAY[p_id], ARRAY[p_claim], ARRAY[seconds], ARRAY[p_refund], ARRAY[p_reason], ARRAY[p_error], true);

    RETURN 'pending';
END
$$;
COMMENT ON FUNCTION aiopgq.return_job IS
    'The way back to pending for one job, what fail_job and snooze_job share. Returns the status it has now.';

CREATE FUNCTION aiopgq.fail_job(
    p_id uuid, p_claim uuid, p_error text, p_delay interval DEFAULT NULL, p_bury boolean DEFAULT false,
    p_traceback text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    mine record;
    reason text := left(p_error, 2000);
    entry text;
BEGIN
    PERFORM aiopgq.let_in_later();
    SELECT j.attempts, j.max_attempts, coalesce(w.name, j.worker_id::text) AS worker INTO mine
    FROM aiopgq.jobs j LEFT JOIN aiopgq.workers w ON w.id = j.worker_id
    WHERE j.id = p_id AND j.claim_id = p_claim FOR UPDATE OF j;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    entry := jsonb_build_object(
        'at', clock_timestamp(), 'attempt', mine.attempts, 'error', reason, 'traceback', left(p_traceback, 8000),
        'worker', mine.worker);
    IF p_bury OR mine.attempts >= mine.max_attempts THEN
        PERFORM aiopgq.bury_jobs(ARRAY[p_id], ARRAY[p_claim], ARRAY[reason], ARRAY[entry]);
        RETURN 'failed';
    END IF;

    RETURN aiopgq.return_job(
        p_id, p_claim, coalesce(p_delay, make_interval(secs => aiopgq.backoff(mine.attempts))), false, reason, entry);
END
$$;
COMMENT ON FUNCTION aiopgq.fail_job IS
    'A run has failed: pending again after p_delay (default: the backoff of tasks), or a dead letter if no attempt is '
    'left or p_bury. Returns the status it has now; cancelled if somebody asked for that; NULL if it is not yours.';

CREATE FUNCTION aiopgq.snooze_job(p_id uuid, p_claim uuid, p_delay interval) RETURNS text
LANGUAGE sql
AS $$
    SELECT aiopgq.return_job(p_id, p_claim, p_delay, true, NULL, NULL)
$$;
COMMENT ON FUNCTION aiopgq.snooze_job IS
    'Run it again later, without spending the attempt; with a delay of zero it is released. Returns as fail_job does.';

CREATE FUNCTION aiopgq.report_progress(
    p_id uuid, p_claim uuid, p_percent double precision, p_stage text DEFAULT NULL,
    OUT owned boolean, OUT cancel_requested boolean
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    SELECT true, m.cancel_requested INTO owned, cancel_requested
    FROM aiopgq.jobs j
    CROSS JOIN LATERAL aiopgq.mark_jobs(
        ARRAY[p_id], ARRAY[p_claim], ARRAY[extract(epoch FROM clock_timestamp() - j.claimed_at)::double precision],
        ARRAY[p_percent::real], ARRAY[left(p_stage, 200)], ARRAY[1]) m
    WHERE j.id = p_id AND j.claim_id = p_claim;
    owned := coalesce(owned, false);
    cancel_requested := coalesce(cancel_requested, false);
END
$$;
COMMENT ON FUNCTION aiopgq.report_progress IS
    'Say how far a run is. owned = false: the job belongs to somebody else, so stop; cancel_requested: end by cancel_job.';

-- With the rights of the owner: a role that works needs no right to what it has seen.
CREATE FUNCTION aiopgq.see_beats(p_observer uuid) RETURNS TABLE (worker uuid, beat bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
#variable_conflict use_column
DECLARE
    now_ timestamptz := clock_timestamp();
BEGIN
    -- Two calls at once by one observer would be two readings in no order.
    PERFORM pg_advisory_xact_lock(hashtextextended('aiopgq.seen_beats' || p_observer::text, 0));
    -- A beat seen anew, or not looked at for a third of the lease, is seen since now only: the observer may have been
    -- away together with those it watches, and no step of the clock looks like silence. So a worker is silent only to
    -- one who has called this again and again for a whole lease.
    INSERT INTO aiopgq.seen_beats AS s (observer, worker, beat, since, read_at)
    SELECT p_observer, w.id, w.beat, clock_timestamp(), now_
    FROM aiopgq.workers w WHERE w.dead_at IS NULL AND w.id <> p_observer
    ON CONFLICT (observer, worker) DO UPDATE SET
        beat = excluded.beat,
        read_at = excluded.read_at,
        since = CASE
            WHEN s.beat = excluded.beat AND excluded.read_at - s.read_at BETWEEN interval '0' AND (
                SELECT w.lease / 3 FROM aiopgq.workers w WHERE w.id = excluded.worker)
            THEN s.since
            ELSE excluded.since
        END;
    DELETE FROM aiopgq.seen_beats s WHERE s.observer = p_observer AND s.read_at <> now_;
    DELETE FROM aiopgq.seen_beats s USING (
        SELECT o.observer, o.worker FROM aiopgq.seen_beats o
        WHERE NOT EXISTS (SELECT 1 FROM aiopgq.workers w WHERE w.id = o.observer AND w.dead_at IS NULL)
          AND o.observer <> p_observer
        FOR UPDATE SKIP LOCKED
    ) AS gone WHERE s.observer = gone.observer AND s.worker = gone.worker;

    RETURN QUERY
    SELECT s.worker, s.beat FROM aiopgq.seen_beats s JOIN aiopgq.workers w ON w.id = s.worker
    WHERE s.observer = p_observer AND now_ - s.since >= w.lease
    ORDER BY s.worker;
END
$$;
COMMENT ON FUNCTION aiopgq.see_beats IS
    'Take a reading of all beats for an observer; returns the workers it has itself seen silent for their whole lease.';

CREATE FUNCTION aiopgq.recover_stale_jobs(p_worker uuid, p_keep boolean DEFAULT true) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    silent record;
    total integer := 0;
BEGIN
    FOR silent IN SELECT s.worker, s.beat FROM aiopgq.see_beats(p_worker) s LOOP
        -- NULL if it has beaten since.
        total := total + coalesce(aiopgq.rescue_worker(silent.worker, silent.beat, p_keep), 0);
    END LOOP;

    RETURN total + aiopgq.rescue_orphans(p_keep);
END
$$;
COMMENT ON FUNCTION aiopgq.recover_stale_jobs IS
    'Look at the beats of all workers once, and take the jobs of those whose beat this one has itself seen unchanged for '
    'their whole lease, call after call, a third of the lease apart at most. Returns how many jobs went back.';

CREATE FUNCTION aiopgq.drain_workers(p_ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql
AS $$
DECLARE
    asked uuid;
BEGIN
    FOR asked IN
        UPDATE aiopgq.workers w SET drain_requested = true
        FROM (
            SELECT o.id FROM aiopgq.workers o WHERE o.id = ANY (p_ids) AND o.dead_at IS NULL ORDER BY o.id FOR UPDATE
        ) AS chosen
        WHERE w.id = chosen.id
        RETURNING w.id
    LOOP
        PERFORM pg_notify(aiopgq.channel() || ':drain', asked::text);
        RETURN NEXT asked;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.drain_workers IS
    'Ask workers to claim no more, finish what runs, and end: at once through NOTIFY, else with their next beat.';

SELECT aiopgq.renew_grants();
