-- 0004: claim, and what comes before it: promotion of due jobs
-- phase: before
-- oldest code: 1
-- locks: none; everything is new

-- plpgsql keeps the plan; before PostgreSQL 18 a function in sql plans anew in every statement, 0.2 ms a wake.
CREATE FUNCTION aiopgq.find_lanes(p_queues text[]) RETURNS TABLE (queue text, priority smallint, place bigint)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    -- One index probe per priority level instead of reading the line.
    RETURN QUERY
    WITH RECURSIVE lane AS (
        SELECT q.queue, top.priority, top.place
        FROM unnest(p_queues) AS q (queue)
        CROSS JOIN LATERAL (
            SELECT j.priority, j.place FROM aiopgq.jobs j
            WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL AND j.queue = q.queue
            ORDER BY j.queue, j.priority DESC, j.place LIMIT 1
        ) AS top
        UNION ALL
        SELECT lane.queue, below.priority, below.place
        FROM lane
        CROSS JOIN LATERAL (
            SELECT j.priority, j.place FROM aiopgq.jobs j
            WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL AND j.queue = lane.queue
              AND j.priority < lane.priority
            ORDER BY j.queue, j.priority DESC, j.place LIMIT 1
        ) AS below
    )
    SELECT lane.queue, lane.priority, lane.place FROM lane;
END
$$;
COMMENT ON FUNCTION aiopgq.find_lanes IS 'The priorities that have ready jobs, for each queue, highest first, and the first place of each.';

-- Planner settings belong to the function: they work through poolers, and a plan cached while the table was
-- empty would cost 40 ms a claim after a bulk load. jit = off because enable_seqscan = off makes costs huge.
CREATE FUNCTION aiopgq.claim_lanes(
    p_worker uuid, p_claim uuid, p_limit integer, p_tasks text[],
    p_queues text[], p_slots integer[],
    p_lane_queues text[], p_lane_priorities smallint[], p_lane_bounds bigint[]
) RETURNS TABLE (
    id uuid, queue text, task text, priority smallint, place bigint, args text, headers text,
    attempts integer, max_attempts integer, timeout interval, created_at timestamptz, run_at timestamptz
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    rated boolean;
    paused text[];
BEGIN
    IF p_lane_queues IS NULL THEN
        -- From the first job of each lane: dead entries before it are read once, not twice. What is committed
        -- before it meanwhile is found by the next sweep.
        SELECT array_agg(l.queue), array_agg(l.priority), array_agg(l.place)
        INTO p_lane_queues, p_lane_priorities, p_lane_bounds
        FROM aiopgq.find_lanes(p_queues) l;
    END IF;
    -- A pause holds from the next claim on, whoever makes it.
    IF pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN
        SELECT bool_or(q.rate IS NOT NULL) INTO rated FROM aiopgq.queues q WHERE q.name = ANY (p_queues);
        IF rated IS NOT NULL THEN
            p_slots := aiopgq.open_slots(p_queues, p_slots);
        END IF;
        paused := aiopgq.paused_names();
        IF paused <> '{}' THEN
            p_tasks := ARRAY(SELECT t.name FROM unnest(p_tasks) AS t (name) WHERE t.name <> ALL (paused));
        END IF;
    END IF;

    RETURN QUERY
    UPDATE aiopgq.jobs u
    SET status = 'claimed', worker_id = p_worker, claim_id = p_claim, claimed_at = now_, attempts = u.attempts + 1
    -- An array of row addresses is read once, whatever the planner believes; no sort above the line, so that
    -- each lane stops at its limit and locks no row too many.
    WHERE u.ctid = ANY (ARRAY(
        SELECT chosen.ctid
        FROM unnest(p_queues, p_slots) AS q (queue, slots)
        CROSS JOIN LATERAL (
            SELECT ready.ctid
            FROM unnest(p_lane_queues, p_lane_priorities, p_lane_bounds) AS lane (queue, priority, bound)
            CROSS JOIN LATERAL (
                SELECT j.ctid FROM aiopgq.jobs j
                WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL
                  AND j.queue = lane.queue AND j.priority = lane.priority AND j.place >= lane.bound
                  AND j.task = ANY (p_tasks)
                ORDER BY j.place LIMIT q.slots
                FOR UPDATE SKIP LOCKED
            ) AS ready
            WHERE lane.queue = q.queue
            LIMIT q.slots
        ) AS chosen
        LIMIT p_limit
    ))
    RETURNING u.id, u.queue, u.task, u.priority, u.place, u.args::text, u.headers::text,
        u.attempts, u.max_attempts, u.timeout, u.created_at, u.run_at;
    IF rated THEN
        PERFORM aiopgq.spend_tokens(p_worker, p_claim);
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.claim_lanes IS
    'Claim ready jobs: each queue fills its slots from its lanes in the order given, p_limit in all. '
    'Lanes NULL: sweep every lane of the queues from the start.';

CREATE FUNCTION aiopgq.promote_jobs(
    p_from timestamptz, p_limit integer, p_tasks text[],
    OUT promoted integer, OUT reached timestamptz, OUT next_in double precision
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    line record;
    admitted record;
BEGIN
    promoted := 0;
    FOR line IN
        WITH ready AS (
            UPDATE aiopgq.jobs u
            SET place = nextval('aiopgq.places'), held = CASE WHEN u.limit_key IS NOT NULL THEN 'new limit' END
            FROM (
                SELECT j.ctid AS address FROM aiopgq.jobs j
                WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NULL
                  AND j.run_at >= p_from AND j.run_at <= now_
                ORDER BY j.run_at LIMIT p_limit
                FOR UPDATE SKIP LOCKED
            ) AS due
            WHERE u.ctid = due.address
            RETURNING u.queue, u.run_at
        )
        SELECT ready.queue, count(*) AS jobs, max(ready.run_at) AS latest FROM ready GROUP BY ready.queue
    LOOP
        promoted := promoted + line.jobs;
        reached := greatest(reached, line.latest);
        PERFORM aiopgq.wake_queue(line.queue, now_);
    END LOOP;

    SELECT * INTO admitted FROM aiopgq.admit_jobs(p_tasks, p_limit);
    promoted := promoted + admitted.moved;

    SELECT greatest(extract(epoch FROM j.run_at - clock_timestamp())::double precision, 0) INTO next_in
    FROM aiopgq.jobs j
    WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NULL
      AND j.run_at >= coalesce(reached, p_from)
    ORDER BY j.run_at LIMIT 1;
    next_in := least(next_in, admitted.next_in);
END
$$;
COMMENT ON FUNCTION aiopgq.promote_jobs IS
    'Give up to p_limit due jobs a place in line, and let in those that have arrived outside. '
    'next_in: seconds until the next one is due, or a token is; NULL if none waits.';
