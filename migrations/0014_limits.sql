-- 0014: limits, order and pauses: what keeps due jobs out of the line
-- phase: before
-- oldest code: 1
-- locks: ACCESS EXCLUSIVE on jobs, dead_letters and schedules for a moment; the indexes are partial and empty
--
-- A job with a limit_key waits outside (held = 'limit') until its key has room; a job with an order_key waits
-- (held = 'order') until it is the first of its key. Those let in are in line, so a claim needs to know nothing of
-- limits and reads no job that may not run. Room is what the rows say: a job takes some while it is in line, claimed or
-- running, and no longer. Whoever lets jobs in holds the gate of the key, a row that is only locked for short.
-- Order of locks: first rows of jobs, then gates of order, then gates of limits, each in the order of their keys. Whoever
-- holds a gate waits for no row of a job. A producer takes no gate: his jobs arrive outside ('new …').

ALTER TABLE aiopgq.jobs
    ADD COLUMN order_no bigint,
    ADD COLUMN order_key text
        CONSTRAINT order_key_has_1_to_2000_bytes CHECK (octet_length(order_key) BETWEEN 1 AND 2000),
    ADD COLUMN order_blocks boolean;
COMMENT ON COLUMN aiopgq.jobs.limit_key IS 'NAME of its limit, or NAME/VALUE for a limit with a key.';
COMMENT ON COLUMN aiopgq.jobs.order_key IS 'NAME/VALUE: of the jobs with this key one runs at a time, in the order of order_no.';
COMMENT ON COLUMN aiopgq.jobs.order_blocks IS 'As a dead letter it stops those behind it.';
ALTER TABLE aiopgq.dead_letters
    ADD COLUMN order_no bigint,
    ADD COLUMN order_key text,
    ADD COLUMN order_blocks boolean;
ALTER TABLE aiopgq.schedules
    ADD COLUMN limit_key text,
    ADD COLUMN order_key text,
    ADD COLUMN order_blocks boolean;
CREATE SEQUENCE aiopgq.orders AS bigint;
COMMENT ON SEQUENCE aiopgq.orders IS 'An ordered job draws its number once, when it is inserted.';

-- squawk-ignore require-concurrent-index-creation
CREATE INDEX jobs_inside ON aiopgq.jobs (limit_key, place)
    WHERE limit_key IS NOT NULL AND held IS NULL AND place IS NOT NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX jobs_outside ON aiopgq.jobs (limit_key, priority DESC, place) WHERE held = 'limit';
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX jobs_turn ON aiopgq.jobs (order_key)
    WHERE order_key IS NOT NULL AND (held IS NULL OR held NOT IN ('order', 'new order'));
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX jobs_behind ON aiopgq.jobs (order_key, order_no) WHERE held IN ('order', 'new order');
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX dead_letters_blocking ON aiopgq.dead_letters (order_key, order_no) WHERE order_blocks;

CREATE TABLE aiopgq.limits (
    name text NOT NULL CONSTRAINT limits_key PRIMARY KEY,
    running integer,
    rate integer,
    burst integer,
    per double precision,
    CONSTRAINT running_is_at_least_one CHECK (running >= 1),
    CONSTRAINT rate_has_a_period CHECK (num_nulls(rate, burst, per) IN (0, 3) AND rate >= 1 AND burst >= 1 AND per > 0)
);
COMMENT ON TABLE aiopgq.limits IS 'What workers have declared: how many jobs of each key run at once, how many start in a period.';

CREATE TABLE aiopgq.gates (
    key text NOT NULL CONSTRAINT gates_key PRIMARY KEY,
    lowest bigint NOT NULL DEFAULT 0,
    -- The moment at which the bucket of tokens is full again.
    full_at timestamptz NOT NULL DEFAULT '-infinity',
    next_at timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX gates_next ON aiopgq.gates (next_at) WHERE next_at IS NOT NULL;
COMMENT ON TABLE aiopgq.gates IS 'A row per key in use; locked by whoever lets its jobs in.';
COMMENT ON COLUMN aiopgq.gates.lowest IS 'No job of this key that is inside has a lower place.';
COMMENT ON COLUMN aiopgq.gates.next_at IS 'When jobs that wait for a token may be let in.';

CREATE TABLE aiopgq.queues (
    name text NOT NULL CONSTRAINT queues_key PRIMARY KEY,
    paused_at timestamptz,
    full_at timestamptz NOT NULL DEFAULT '-infinity',
    running integer,
    rate integer,
    burst integer,
    per double precision,
    CONSTRAINT running_is_at_least_one CHECK (running >= 1),
    CONSTRAINT rate_has_a_period CHECK (num_nulls(rate, burst, per) IN (0, 3) AND rate >= 1 AND burst >= 1 AND per > 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE aiopgq.queues IS 'A row for each queue that is paused or has a limit.';

-- Looking into an empty table costs more than reading a sequence; this one has a value once a queue or a task was
-- paused or a queue was limited, and keeps it. It is not MVCC, so it has one before the row is seen.
CREATE SEQUENCE aiopgq.restraints AS bigint;

CREATE TABLE aiopgq.paused_tasks (
    name text NOT NULL CONSTRAINT paused_tasks_key PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION aiopgq.limited_queues() RETURNS text[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN ARRAY(SELECT q.name FROM aiopgq.queues q WHERE q.running IS NOT NULL);
END
$$;

CREATE FUNCTION aiopgq.paused_names() RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN ARRAY(SELECT t.name FROM aiopgq.paused_tasks t);
END
$$;

-- Tokens: a bucket holds `burst`, and `rate` of them come back in each period.

CREATE FUNCTION aiopgq.tokens(p_full_at timestamptz, p_rate integer, p_burst integer, p_per double precision)
RETURNS integer
LANGUAGE sql VOLATILE
RETURN floor(p_burst + 1e-6 - greatest(0, extract(epoch FROM
    greatest(p_full_at, clock_timestamp()) - clock_timestamp())::double precision) * p_rate / p_per)::integer;
COMMENT ON FUNCTION aiopgq.tokens IS 'How many jobs may start now, of a bucket that is full again at p_full_at.';

CREATE FUNCTION aiopgq.spend(p_full_at timestamptz, p_tokens integer, p_rate integer, p_per double precision)
RETURNS timestamptz
LANGUAGE sql VOLATILE
RETURN greatest(p_full_at, clock_timestamp()) + make_interval(secs => p_tokens * p_per / p_rate);
COMMENT ON FUNCTION aiopgq.spend IS 'When a bucket is full again, after so many tokens are taken.';

CREATE FUNCTION aiopgq.not_below_empty(
    p_full_at timestamptz, p_rate integer, p_burst integer, p_per double precision
) RETURNS timestamptz
LANGUAGE sql VOLATILE
RETURN least(p_full_at, clock_timestamp() + make_interval(secs => p_burst * p_per / p_rate));
COMMENT ON FUNCTION aiopgq.not_below_empty IS
    'When a bucket is full again, as far as its limit can say: after it was raised, or the clock was set back, p_full_at '
    'may be further away than an empty bucket needs.';

CREATE FUNCTION aiopgq.next_token(p_full_at timestamptz, p_rate integer, p_burst integer, p_per double precision)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE
RETURN p_full_at - make_interval(secs => (p_burst - 1) * p_per / p_rate);
COMMENT ON FUNCTION aiopgq.next_token IS 'When an empty bucket holds a token again.';

-- Gates

CREATE FUNCTION aiopgq.lock_gates(p_kind text, p_keys text[]) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    wanted text[] := ARRAY(SELECT DISTINCT p_kind || k.key FROM unnest(p_keys) AS k (key) WHERE k.key IS NOT NULL);
    locked integer;
BEGIN
    IF p_kind = 'limit ' THEN
        -- Whoever declares a limit waits for those who let jobs in by the old one, also behind gates he cannot see yet.
        PERFORM pg_advisory_xact_lock_shared('aiopgq.limits'::regclass::oid::bigint);
    END IF;
    -- Upkeep may take one away, that nobody has used for long, while we wait for it; then it is made again.
    FOR attempt IN 1 .. 3 LOOP
        INSERT INTO aiopgq.gates (key)
        SELECT w.key FROM unnest(wanted) AS w (key)
        WHERE NOT EXISTS (SELECT 1 FROM aiopgq.gates g WHERE g.key = w.key)
        ORDER BY w.key
        ON CONFLICT (key) DO NOTHING;
        PERFORM 1 FROM (SELECT w.key FROM unnest(wanted) AS w (key) ORDER BY w.key) AS w
        JOIN aiopgq.gates g ON g.key = w.key
        FOR UPDATE OF g;
        GET DIAGNOSTICS locked = ROW_COUNT;
        IF locked = cardinality(wanted) THEN
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                -- Whoever waits for us has a snapshot in which those we let in are outside: he shall begin again.
                UPDATE aiopgq.gates SET lowest = lowest WHERE key = ANY (wanted);
            END IF;
            RETURN;
        END IF;
    END LOOP;
    -- In a snapshot that is older than that it does not help; the statement is repeated whole.
    RAISE serialization_failure USING MESSAGE = 'a gate was taken away while it was to be locked';
END
$$;
COMMENT ON FUNCTION aiopgq.lock_gates IS 'Lock the gates of keys in their order, and make those that are missing.';

CREATE FUNCTION aiopgq.let_in_by_order(p_keys text[]) RETURNS integer
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
    one text;
    first record;
    chosen record;
    due boolean;
    entered integer := 0;
BEGIN
    PERFORM aiopgq.lock_gates('order ', p_keys);
    FOR one IN SELECT DISTINCT k.key FROM unnest(p_keys) AS k (key) WHERE k.key IS NOT NULL LOOP
        CONTINUE WHEN EXISTS (
            SELECT 1 FROM aiopgq.jobs j
            WHERE j.order_key = one AND j.order_key IS NOT NULL
              AND (j.held IS NULL OR j.held NOT IN ('order', 'new order')));
        SELECT j.id, j.order_no INTO first FROM aiopgq.jobs j
        -- Also of those nobody has looked at: a batch of them is taken in no order.
        WHERE j.held IN ('order', 'new order') AND j.order_key = one
        ORDER BY j.order_no LIMIT 1;
        CONTINUE WHEN first.id IS NULL;
        CONTINUE WHEN EXISTS (
            SELECT 1 FROM aiopgq.dead_letters d
            WHERE d.order_blocks AND d.order_key = one AND d.order_no < first.order_no);
        -- What counts is what it is once it is locked: a replacement may have put it under a limit or another order, or
        -- postponed it. Whoever cancels it lets the next one in.
        SELECT j.id, j.run_at, j.queue, j.limit_key INTO chosen FROM aiopgq.jobs j
        WHERE j.id = first.id AND j.held IN ('order', 'new order') AND j.order_key = one
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        due := chosen.run_at <= clock_timestamp();
        UPDATE aiopgq.jobs j
        SET held = CASE WHEN due AND chosen.limit_key IS NOT NULL THEN 'new limit' END,
            place = CASE WHEN due THEN nextval('aiopgq.places') END
        WHERE j.id = chosen.id;
        entered := entered + 1;
        PERFORM aiopgq.wake_queue(chosen.queue, chosen.run_at);
    END LOOP;

    RETURN entered;
END
$$;
COMMENT ON FUNCTION aiopgq.let_in_by_order IS
    'Let the first job of each order key in, if none of them is inside and no dead letter stands before it.';

CREATE FUNCTION aiopgq.let_in_by_limit(p_keys text[]) RETURNS integer
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
    one record;
    next record;
    inside bigint;
    unstarted bigint;
    low bigint;
    room bigint;
    tokens integer;
    crowded boolean;
    drawn bigint;
    let_in integer;
    entered integer := 0;
BEGIN
    PERFORM aiopgq.lock_gates('limit ', p_keys);
    FOR one IN
        SELECT k.key, g.lowest, g.full_at, g.next_at, l.running, l.rate, l.burst, l.per
        FROM (SELECT DISTINCT k.key FROM unnest(p_keys) AS k (key) WHERE k.key IS NOT NULL) AS k
        JOIN aiopgq.gates g ON g.key = 'limit ' || k.key
        LEFT JOIN aiopgq.limits l ON l.name = split_part(k.key, '/', 1)
    LOOP
        room := 100000;
        low := NULL;
        tokens := NULL;
        crowded := false;
        let_in := 0;
        IF num_nonnulls(one.running, one.rate) > 0 THEN
            -- Places are drawn behind the gate, so none below the lowest one comes back: the count stays short.
            SELECT count(*), count(*) FILTER (WHERE j.status = 'pending'), min(j.place) INTO inside, unstarted, low
            FROM aiopgq.jobs j
            WHERE j.limit_key = one.key AND j.limit_key IS NOT NULL AND j.held IS NULL
              AND j.place IS NOT NULL AND j.place >= one.lowest;
        END IF;
        IF one.running IS NOT NULL THEN
            room := one.running - inside;
        END IF;
        IF one.rate IS NOT NULL THEN
            one.full_at := aiopgq.not_below_empty(one.full_at, one.rate, one.burst, one.per);
            tokens := aiopgq.tokens(one.full_at, one.rate, one.burst, one.per);
            -- The token of a job that is in line but has not started still lies in the bucket. Else workers that are
            -- busy with other things for long would let in more and more, and start them all at once.
            IF tokens > one.burst - unstarted THEN
                tokens := greatest(0, one.burst - unstarted);
                one.full_at := clock_timestamp() + make_interval(secs => (one.burst - tokens) * one.per / one.rate);
                crowded := true;
            END IF;
        END IF;
        IF room < 0 THEN
            -- The limit was lowered: what has not begun goes out again.
            UPDATE aiopgq.jobs u SET held = 'limit'
            WHERE u.ctid = ANY (ARRAY(
                SELECT j.ctid FROM aiopgq.jobs j
                WHERE j.limit_key = one.key AND j.limit_key IS NOT NULL AND j.held IS NULL AND j.place IS NOT NULL
                  AND j.place >= one.lowest AND j.status = 'pending'
                ORDER BY j.place DESC LIMIT -room
                FOR UPDATE SKIP LOCKED));
        END IF;
        FOR next IN
            SELECT j.id, j.queue FROM aiopgq.jobs j
            WHERE j.held = 'limit' AND j.limit_key = one.key
            ORDER BY j.priority DESC, j.place
            LIMIT greatest(0, least(room, tokens))
            FOR UPDATE SKIP LOCKED
        LOOP
            UPDATE aiopgq.jobs j SET held = NULL, place = nextval('aiopgq.places') WHERE j.id = next.id
            RETURNING j.place INTO drawn;
            low := coalesce(low, drawn);
            let_in := let_in + 1;
            PERFORM aiopgq.wake_queue(next.queue, clock_timestamp());
        END LOOP;
        IF let_in > 0 OR one.next_at IS NOT NULL OR tokens < room THEN
            IF let_in > 0 AND tokens IS NOT NULL THEN
                one.full_at := aiopgq.spend(one.full_at, let_in, one.rate, one.per);
            END IF;
            UPDATE aiopgq.gates g
            SET lowest = CASE WHEN num_nonnulls(one.running, one.rate) > 0
                              THEN greatest(g.lowest, low) ELSE g.lowest END,
                full_at = one.full_at,
                next_at = CASE WHEN tokens <= let_in AND tokens < room AND (
                                   -- In an order, so that no plan takes the index of all that are held.
                                   SELECT j.id FROM aiopgq.jobs j WHERE j.held = 'limit' AND j.limit_key = one.key
                                   ORDER BY j.priority DESC, j.place LIMIT 1) IS NOT NULL
                               -- Nothing tells when one of those in line has started, and looking costs something.
                               THEN greatest(
                                   CASE WHEN crowded THEN clock_timestamp() + '0.1 seconds' END,
                                   aiopgq.next_token(one.full_at, one.rate, one.burst, one.per)) END
            WHERE g.key = 'limit ' || one.key;
        END IF;
        entered := entered + let_in;
    END LOOP;

    RETURN entered;
END
$$;
COMMENT ON FUNCTION aiopgq.let_in_by_limit IS
    'Let jobs of each limit key in, higher priorities first, as many as there is room and as there are tokens.';

CREATE FUNCTION aiopgq.let_in(p_orders text[], p_limits text[]) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    entered integer := 0;
BEGIN
    IF current_setting('aiopgq.letting_in', true) = 'later' THEN
        -- The gates would be locked for as long as a transaction of somebody else's takes, and all workers wait.
        PERFORM aiopgq.knock('order', k.key) FROM (SELECT DISTINCT unnest(p_orders)) AS k (key);
        PERFORM aiopgq.knock('limit', k.key) FROM (SELECT DISTINCT unnest(p_limits)) AS k (key);
        RETURN 0;
    END IF;
    IF p_orders IS NOT NULL THEN
        entered := aiopgq.let_in_by_order(p_orders);
    END IF;
    IF p_limits IS NOT NULL THEN
        entered := entered + aiopgq.let_in_by_limit(p_limits);
    END IF;

    RETURN entered;
END
$$;
COMMENT ON FUNCTION aiopgq.let_in IS
    'What every statement calls by which jobs leave: let in those that wait for them; or, in functions that people call '
    'in transactions of their own, knock, so that the next worker does it after the commit.';

CREATE FUNCTION aiopgq.knock(p_kind text, p_key text) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    first record;
BEGIN
    IF p_kind = 'order' THEN
        SELECT j.id, j.queue INTO first FROM aiopgq.jobs j
        WHERE j.held IN ('order', 'new order') AND j.order_key = p_key
        ORDER BY j.order_no LIMIT 1
        FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT j.id, j.queue INTO first FROM aiopgq.jobs j
        WHERE j.held = 'limit' AND j.limit_key = p_key
        ORDER BY j.priority DESC, j.place LIMIT 1
        FOR UPDATE SKIP LOCKED;
    END IF;
    IF FOUND THEN
        UPDATE aiopgq.jobs j SET held = 'new ' || p_kind WHERE j.id = first.id;
        PERFORM aiopgq.wake_queue(first.queue, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.knock IS
    'A job has left those that are inside, or first in their order, in a transaction that may take its time: the next '
    'worker looks whether another may go in.';

CREATE FUNCTION aiopgq.admit_jobs(p_tasks text[], p_limit integer, OUT moved integer, OUT next_in double precision)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    keys text[];
    tokens_for text[];
    -- As parameters, so that no plan takes the index of those who wait for their turn.
    new_order text := 'new order';
    new_limit text := 'new limit';
BEGIN
    moved := 0;
    IF pg_sequence_last_value('aiopgq.restraints'::regclass) > 0 THEN
        -- Those of paused tasks stay where they have arrived: in line they would take room from others.
        p_tasks := ARRAY(SELECT t.name FROM unnest(p_tasks) AS t (name) WHERE t.name <> ALL (aiopgq.paused_names()));
    END IF;
    WITH arrived AS (
        UPDATE aiopgq.jobs u SET held = 'order'
        WHERE u.ctid = ANY (ARRAY(
            SELECT j.ctid FROM aiopgq.jobs j
            WHERE j.held = new_order AND j.task = ANY (p_tasks) LIMIT p_limit
            FOR UPDATE SKIP LOCKED))
        RETURNING u.order_key
    )
    SELECT count(*), array_agg(a.order_key) INTO moved, keys FROM arrived a;
    IF moved > 0 THEN
        PERFORM aiopgq.let_in_by_order(keys);
    END IF;

    WITH arrived AS (
        UPDATE aiopgq.jobs u SET held = 'limit'
        WHERE u.ctid = ANY (ARRAY(
            SELECT j.ctid FROM aiopgq.jobs j
            WHERE j.held = new_limit AND j.task = ANY (p_tasks) LIMIT p_limit
            FOR UPDATE SKIP LOCKED))
        RETURNING u.limit_key
    )
    SELECT moved + count(*), array_agg(a.limit_key) INTO moved, keys FROM arrived a;
    tokens_for := ARRAY(
        SELECT substr(g.key, 7) FROM aiopgq.gates g
        WHERE g.next_at IS NOT NULL AND g.next_at <= clock_timestamp() ORDER BY g.next_at LIMIT p_limit);
    IF keys IS NOT NULL OR tokens_for <> '{}' THEN
        moved := moved + aiopgq.let_in_by_limit(keys || tokens_for);
    END IF;

    SELECT min(greatest(0, extract(epoch FROM t.at - clock_timestamp())::double precision)) INTO next_in
    FROM (
        (SELECT g.next_at FROM aiopgq.gates g WHERE g.next_at IS NOT NULL ORDER BY g.next_at LIMIT 1)
        UNION ALL
        SELECT aiopgq.next_token(q.full_at, q.rate, q.burst, q.per) FROM aiopgq.queues q
        WHERE q.paused_at IS NULL AND q.rate IS NOT NULL
          AND aiopgq.tokens(q.full_at, q.rate, q.burst, q.per) < 1
    ) AS t (at);
END
$$;
COMMENT ON FUNCTION aiopgq.admit_jobs IS
    'Look at jobs that have arrived, and at keys whose next token is due. next_in: seconds until the next token.';

CREATE FUNCTION aiopgq.let_in_stranded() RETURNS integer
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
    orders text[];
    limits text[];
BEGIN
    -- One index probe per key.
    orders := ARRAY(
        WITH RECURSIVE w AS (
            (SELECT j.order_key FROM aiopgq.jobs j
             WHERE j.held = 'order' AND j.order_key IS NOT NULL ORDER BY j.order_key LIMIT 1)
            UNION ALL
            SELECT (SELECT j.order_key FROM aiopgq.jobs j
                    WHERE j.held = 'order' AND j.order_key > w.order_key ORDER BY j.order_key LIMIT 1)
            FROM w WHERE w.order_key IS NOT NULL
        )
        SELECT w.order_key FROM w
        WHERE w.order_key IS NOT NULL AND (
            SELECT j.id FROM aiopgq.jobs j WHERE j.order_key = w.order_key AND j.order_key IS NOT NULL
              AND (j.held IS NULL OR j.held NOT IN ('order', 'new order')) LIMIT 1) IS NULL);
    limits := ARRAY(
        WITH RECURSIVE w AS (
            (SELECT j.limit_key FROM aiopgq.jobs j
             WHERE j.held = 'limit' AND j.limit_key IS NOT NULL ORDER BY j.limit_key LIMIT 1)
            UNION ALL
            SELECT (SELECT j.limit_key FROM aiopgq.jobs j
                    WHERE j.held = 'limit' AND j.limit_key > w.limit_key ORDER BY j.limit_key LIMIT 1)
            FROM w WHERE w.limit_key IS NOT NULL
        )
        SELECT w.limit_key FROM w
        LEFT JOIN aiopgq.limits l ON l.name = split_part(w.limit_key, '/', 1)
        LEFT JOIN aiopgq.gates g ON g.key = 'limit ' || w.limit_key
        WHERE w.limit_key IS NOT NULL
          -- A token comes within its share of the period, or the clock was set back.
          AND (g.next_at IS NULL OR g.next_at > clock_timestamp() + make_interval(secs => l.per / l.rate))
          AND (l.running IS NULL OR l.running > (
              SELECT count(*) FROM aiopgq.jobs j
              WHERE j.limit_key = w.limit_key AND j.limit_key IS NOT NULL AND j.held IS NULL
                AND j.place IS NOT NULL AND j.place >= coalesce(g.lowest, 0))));
    -- Those let in by order are no reason to lock further gates here.
    RETURN aiopgq.let_in(nullif(orders, '{}'), nullif(limits, '{}'));
END
$$;
COMMENT ON FUNCTION aiopgq.let_in_stranded IS
    'The net below: let in jobs outside whose key has room, as a process that died between two statements leaves them.';

CREATE FUNCTION aiopgq.forget_gates(p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    forgotten integer;
BEGIN
    DELETE FROM aiopgq.gates WHERE key = ANY (ARRAY(
        SELECT g.key FROM aiopgq.gates g
        WHERE g.full_at < clock_timestamp() AND g.next_at IS NULL
          -- Not as NOT EXISTS, which may become a join that reads the whole of an index.
          AND (SELECT j.id FROM aiopgq.jobs j WHERE j.limit_key = substr(g.key, 7) AND j.limit_key IS NOT NULL
               AND j.held IS NULL AND j.place IS NOT NULL LIMIT 1) IS NULL
          -- In an order, so that no plan takes the index of all that are held.
          AND (SELECT j.id FROM aiopgq.jobs j WHERE j.limit_key = substr(g.key, 7) AND j.held = 'limit'
               ORDER BY j.priority DESC, j.place LIMIT 1) IS NULL
          AND (SELECT j.id FROM aiopgq.jobs j WHERE j.order_key = substr(g.key, 7)
               AND j.held IN ('order', 'new order') ORDER BY j.order_no LIMIT 1) IS NULL
        ORDER BY g.key LIMIT p_limit
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS forgotten = ROW_COUNT;

    RETURN forgotten;
END
$$;
COMMENT ON FUNCTION aiopgq.forget_gates IS 'Delete gates of keys that no job waits for or is inside.';

CREATE FUNCTION aiopgq.declare_limits(
    p_names text[], p_running integer[], p_rates integer[], p_bursts integer[], p_pers double precision[],
    p_unlimited text[]
) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    changed text[];
BEGIN
    WITH gone AS (
        DELETE FROM aiopgq.limits l WHERE l.name = ANY (p_unlimited) RETURNING l.name
    ), declared AS (
        INSERT INTO aiopgq.limits AS l (name, running, rate, burst, per)
        SELECT * FROM unnest(p_names, p_running, p_rates, p_bursts, p_pers) AS n (name, running, rate, burst, per)
        ORDER BY n.name
        ON CONFLICT (name) DO UPDATE SET
            (running, rate, burst, per) = (excluded.running, excluded.rate, excluded.burst, excluded.per)
        WHERE (l.running, l.rate, l.burst, l.per)
            IS DISTINCT FROM (excluded.running, excluded.rate, excluded.burst, excluded.per)
        RETURNING l.name
    )
    SELECT array_agg(c.name) INTO changed FROM (SELECT g.name FROM gone g UNION SELECT d.name FROM declared d) AS c;
    IF changed IS NULL THEN
        RETURN 0;
    END IF;
    -- From here on nobody lets jobs in by what was declared before.
    PERFORM pg_advisory_xact_lock('aiopgq.limits'::regclass::oid::bigint);

    RETURN aiopgq.let_in_by_limit(ARRAY(
        SELECT substr(g.key, 7) FROM aiopgq.gates g
        WHERE g.key LIKE 'limit %' AND split_part(substr(g.key, 7), '/', 1) = ANY (changed)));
END
$$;
COMMENT ON FUNCTION aiopgq.declare_limits IS
    'Say what limits the tasks of a worker have; the last one that starts is right, and it applies to all keys at once.';

-- Queues: their limits count when a claim is made, so they need no gate.

CREATE FUNCTION aiopgq.wake_queues(p_queues text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY(SELECT DISTINCT q.name FROM unnest(p_queues) AS q (name)) LOOP
        PERFORM aiopgq.wake_queue(one, clock_timestamp());
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.wake_queues IS 'Wake whoever sleeps on these queues: jobs may start there.';

CREATE FUNCTION aiopgq.limit_queues(
    p_names text[], p_running integer[], p_rates integer[], p_bursts integer[], p_pers double precision[],
    p_unlimited text[]
) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    IF p_names <> '{}' THEN
        PERFORM nextval('aiopgq.restraints');
    END IF;
    UPDATE aiopgq.queues SET running = NULL, rate = NULL, burst = NULL, per = NULL WHERE name = ANY (p_unlimited);
    DELETE FROM aiopgq.queues WHERE name = ANY (p_unlimited) AND paused_at IS NULL;
    INSERT INTO aiopgq.queues AS q (name, running, rate, burst, per)
    SELECT * FROM unnest(p_names, p_running, p_rates, p_bursts, p_pers) AS n (name, running, rate, burst, per)
    ORDER BY n.name
    ON CONFLICT (name) DO UPDATE SET
        (running, rate, burst, per) = (excluded.running, excluded.rate, excluded.burst, excluded.per)
    WHERE (q.running, q.rate, q.burst, q.per)
        IS DISTINCT FROM (excluded.running, excluded.rate, excluded.burst, excluded.per);
    PERFORM aiopgq.wake_queues(p_names || p_unlimited);
END
$$;
COMMENT ON FUNCTION aiopgq.limit_queues IS 'Say what limits queues have; the last worker that starts is right.';

CREATE FUNCTION aiopgq.open_slots(p_queues text[], p_slots integer[]) RETURNS integer[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    slots integer[] := p_slots;
    full_again timestamptz;
    one record;
    at integer;
BEGIN
    -- Whoever claims from a queue with a limit waits for the claim before him, so that the count is true.
    FOR one IN
        SELECT q.name, q.running, q.rate, q.burst, q.per, q.full_at, q.paused_at
        FROM (SELECT w.name FROM unnest(p_queues) AS w (name) ORDER BY w.name) AS w
        JOIN aiopgq.queues q ON q.name = w.name
        FOR UPDATE OF q
    LOOP
        at := array_position(p_queues, one.name);
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- As with gates: in the snapshot of whoever waits for us the count is that of before.
            UPDATE aiopgq.queues SET running = running WHERE name = one.name;
        END IF;
        IF one.paused_at IS NOT NULL THEN
            slots[at] := 0;
        END IF;
        IF one.running IS NOT NULL AND slots[at] > 0 THEN
            slots[at] := greatest(0, least(slots[at], one.running - (
                SELECT count(*) FROM aiopgq.jobs j WHERE j.worker_id IS NOT NULL AND j.queue = one.name)));
        END IF;
        IF one.rate IS NOT NULL THEN
            full_again := aiopgq.not_below_empty(one.full_at, one.rate, one.burst, one.per);
            IF full_again < one.full_at THEN
                UPDATE aiopgq.queues SET full_at = full_again WHERE name = one.name;
            END IF;
            slots[at] := greatest(0, least(slots[at], aiopgq.tokens(full_again, one.rate, one.burst, one.per)));
        END IF;
    END LOOP;

    RETURN slots;
END
$$;
COMMENT ON FUNCTION aiopgq.open_slots IS 'How many of its slots each queue may fill now, by its limits and pauses.';

CREATE FUNCTION aiopgq.spend_tokens(p_worker uuid, p_claim uuid) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    UPDATE aiopgq.queues q SET full_at = aiopgq.spend(q.full_at, c.jobs::integer, q.rate, q.per)
    FROM (
        SELECT j.queue, count(*) AS jobs FROM aiopgq.jobs j
        WHERE j.worker_id = p_worker AND j.claim_id = p_claim GROUP BY j.queue
    ) AS c
    WHERE q.name = c.queue AND q.rate IS NOT NULL;
END
$$;

-- Pauses

CREATE FUNCTION aiopgq.pause_queue(p_queue text) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM nextval('aiopgq.restraints');
    INSERT INTO aiopgq.queues AS q (name, paused_at) VALUES (p_queue, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE q.paused_at IS NULL;

    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION aiopgq.pause_queue IS 'No job of the queue is claimed from now on; false if it was paused already.';

CREATE FUNCTION aiopgq.resume_queue(p_queue text) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    was boolean;
BEGIN
    UPDATE aiopgq.queues SET paused_at = NULL WHERE name = p_queue AND paused_at IS NOT NULL;
    was := FOUND;
    DELETE FROM aiopgq.queues WHERE name = p_queue AND num_nonnulls(paused_at, running, rate) = 0;
    PERFORM aiopgq.wake_queue(p_queue, clock_timestamp());

    RETURN was;
END
$$;
COMMENT ON FUNCTION aiopgq.resume_queue IS 'End the pause of a queue and wake its workers; false if it was not paused.';

CREATE FUNCTION aiopgq.pause_task(p_task text) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM nextval('aiopgq.restraints');
    INSERT INTO aiopgq.paused_tasks (name) VALUES (p_task) ON CONFLICT (name) DO NOTHING;

    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION aiopgq.pause_task IS
    'No job of the task is claimed from now on; hold_paused_jobs takes those in line out of it.';

CREATE FUNCTION aiopgq.resume_task(p_task text) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    DELETE FROM aiopgq.paused_tasks WHERE name = p_task;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A few may still be in line.
    PERFORM aiopgq.wake_queues(ARRAY(
        SELECT q.queue FROM aiopgq.workers w CROSS JOIN unnest(w.queues) AS q (queue) WHERE w.dead_at IS NULL));

    RETURN true;
END
$$;
COMMENT ON FUNCTION aiopgq.resume_task IS
    'End the pause of a task; free_resumed_jobs puts its jobs back into the line. False if it was not paused.';

CREATE FUNCTION aiopgq.hold_paused_jobs(p_limit integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    paused text[] := ARRAY(SELECT t.name FROM aiopgq.paused_tasks t);
    in_line integer;
    outside integer;
BEGIN
    IF paused = '{}' THEN
        RETURN 0;
    END IF;
    UPDATE aiopgq.jobs u SET held = 'paused'
    WHERE u.ctid = ANY (ARRAY(
        SELECT j.ctid FROM aiopgq.jobs j
        WHERE j.status = 'pending' AND j.held IS NULL AND j.place IS NOT NULL AND j.task = ANY (paused)
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS in_line = ROW_COUNT;
    UPDATE aiopgq.jobs u SET held = 'paused'
    WHERE u.ctid = ANY (ARRAY(
        SELECT j.ctid FROM aiopgq.jobs j
        WHERE j.held IN ('limit', 'new limit') AND j.task = ANY (paused)
        LIMIT p_limit - in_line
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS outside = ROW_COUNT;

    RETURN in_line + outside;
END
$$;
COMMENT ON FUNCTION aiopgq.hold_paused_jobs IS
    'Take jobs of paused tasks out of the line, so that no claim reads them, and away from their limits, so that they '
    'take no room from others.';

CREATE FUNCTION aiopgq.free_resumed_jobs(p_limit integer) RETURNS integer
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
            SET held = CASE WHEN u.limit_key IS NOT NULL THEN 'new limit' END, place = nextval('aiopgq.places')
            FROM (
                SELECT j.ctid AS address FROM aiopgq.jobs j
                WHERE j.held = 'paused' AND NOT EXISTS (SELECT FROM aiopgq.paused_tasks t WHERE t.name = j.task)
                ORDER BY j.place LIMIT p_limit
                FOR UPDATE SKIP LOCKED
            ) AS free
            WHERE u.ctid = free.address
            RETURNING u.queue
        )
        SELECT f.queue, count(*) AS jobs FROM freed f GROUP BY f.queue
    LOOP
        moved := moved + line.jobs;
        PERFORM aiopgq.wake_queue(line.queue, clock_timestamp());
    END LOOP;

    RETURN moved;
END
$$;
COMMENT ON FUNCTION aiopgq.free_resumed_jobs IS 'Put jobs whose task is not paused any more back, in their order.';

-- Enqueue

CREATE FUNCTION aiopgq.enqueue_restrained_jobs(
    p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[],
    p_delays double precision[], p_run_ats timestamptz[], p_max_attempts integer[],
    p_timeouts double precision[], p_headers text[],
    p_limit_keys text[], p_order_keys text[], p_order_blocks boolean[]
) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog
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
        (id, queue, task, args, priority, run_at, created_at, place, max_attempts, timeout, headers,
         held, limit_key, order_no, order_key, order_blocks)
    SELECT
        c.id, c.queue, c.task, c.args, c.priority, c.run_at, started, c.place, c.max_attempts, c.timeout, c.headers,
        CASE WHEN c.order_key IS NOT NULL THEN 'new order'
             WHEN c.limit_key IS NOT NULL AND c.place IS NOT NULL THEN 'new limit' END,
        c.limit_key, c.order_no, c.order_key, c.order_blocks
    FROM (
        -- Places and numbers in the order of the arrays; OFFSET keeps them from being drawn after the sort below.
        SELECT
            n.id, coalesce(n.queue, p_queues[1]) AS queue, coalesce(n.task, p_tasks[1]) AS task,
            n.args::jsonb AS args, coalesce(n.priority, p_priorities[1]) AS priority,
            coalesce(n.run_at, started + make_interval(secs => n.delay), started) AS run_at,
            CASE WHEN coalesce(n.run_at, started + make_interval(secs => n.delay), started) <= started
                 THEN nextval('aiopgq.places') END AS place,
            coalesce(n.max_attempts, p_max_attempts[1]) AS max_attempts,
            make_interval(secs => n.timeout) AS timeout, n.headers::jsonb AS headers, n.limit_key, n.order_key,
            CASE WHEN n.order_key IS NOT NULL THEN nextval('aiopgq.orders') END AS order_no, n.order_blocks
        FROM unnest(
            p_ids, p_queues, p_tasks, p_args, p_priorities, p_delays, p_run_ats, p_max_attempts, p_timeouts, p_headers,
            p_limit_keys, p_order_keys, p_order_blocks
        ) AS n (id, queue, task, args, priority, delay, run_at, max_attempts, timeout, headers,
                limit_key, order_key, order_blocks)
        -- As in enqueue_jobs_once: each id is looked up, and no index is read from end to end.
        WHERE NOT EXISTS (SELECT 1 FROM aiopgq.archive a WHERE a.id = ANY (ARRAY[n.id]))
          AND NOT EXISTS (SELECT 1 FROM aiopgq.dead_letters d WHERE d.id = ANY (ARRAY[n.id]))
        OFFSET 0
    ) AS c
    ORDER BY c.id
    ON CONFLICT (id) DO NOTHING
    RETURNING j.id;
END
$$;
COMMENT ON FUNCTION aiopgq.enqueue_restrained_jobs IS
    'As enqueue_jobs_once, for batches in which jobs have a limit or an order; those wait outside until they are let in.';

CREATE FUNCTION aiopgq.purge_dead_letters(p_ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    gone uuid[];
    orders text[];
BEGIN
    WITH chosen AS (
        SELECT d.id FROM aiopgq.dead_letters d WHERE d.id = ANY (p_ids) ORDER BY d.id FOR UPDATE
    ), purged AS (
        DELETE FROM aiopgq.dead_letters d USING chosen c WHERE d.id = c.id RETURNING d.id, d.order_key, d.order_blocks
    )
    SELECT array_agg(p.id), array_agg(p.order_key) FILTER (WHERE p.order_blocks) INTO gone, orders FROM purged p;
    PERFORM aiopgq.let_in(orders, NULL);

    RETURN QUERY SELECT unnest(gone);
END
$$;
COMMENT ON FUNCTION aiopgq.purge_dead_letters IS 'Delete dead letters for good; those they stood before go on.';

INSERT INTO aiopgq.rights (grantee, privileges, kind, name) VALUES
    ('producer', 'EXECUTE', 'FUNCTION', 'enqueue_restrained_jobs'),
    ('reader', 'SELECT', 'TABLE', 'limits'),
    ('reader', 'SELECT', 'TABLE', 'gates'),
    ('reader', 'SELECT', 'TABLE', 'queues'),
    ('reader', 'SELECT', 'TABLE', 'paused_tasks'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'limits'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'gates'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'queues'),
    ('worker', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', 'paused_tasks'),
    ('worker', 'USAGE', 'SEQUENCE', 'restraints');
SELECT aiopgq.renew_grants();
