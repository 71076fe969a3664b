-- 0013: the outbox: events written with the data they are about, relayed to a broker
-- phase: before
-- oldest code: 1
-- locks: none; everything is new
--
-- Every aggregate belongs to one of 256 shards. A shard is what one relay holds at a time, and what a transaction
-- that adds events locks, shared, from before it draws an id until its end. So a relay can tell which shards have an
-- unfinished transaction that may still bring a lower id, and publishes nothing beyond it. The lock is shared and
-- nobody waits for it: adding events never blocks and never deadlocks.

CREATE SEQUENCE aiopgq.event_ids AS bigint;
COMMENT ON SEQUENCE aiopgq.event_ids IS
    'An event draws its id under the lock of its shard. Not cached: what was drawn is at most the last value.';

CREATE TABLE aiopgq.outbox (
    id bigint NOT NULL CONSTRAINT outbox_key PRIMARY KEY,
    event_id uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT outbox_event_id UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,
    retry_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    shard smallint NOT NULL,
    held text,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    headers jsonb NOT NULL DEFAULT '{}',
    last_error text,
    CONSTRAINT aggregate_type_has_1_to_200_bytes CHECK (octet_length(aggregate_type) BETWEEN 1 AND 200),
    CONSTRAINT aggregate_id_has_1_to_200_bytes CHECK (octet_length(aggregate_id) BETWEEN 1 AND 200),
    CONSTRAINT event_type_has_1_to_200_bytes CHECK (octet_length(event_type) BETWEEN 1 AND 200),
    CONSTRAINT headers_is_an_object CHECK (jsonb_typeof(headers) = 'object'),
    CONSTRAINT created_at_is_between_1900_and_9999
        CHECK (created_at >= '1900-01-01 00:00:00+00' AND created_at < '9999-01-01 00:00:00+00'),
    CONSTRAINT held_is_a_known_reason CHECK (held IN ('retry', 'blocked', 'set aside', 'skipped')),
    CONSTRAINT only_a_retry_has_a_moment CHECK ((held = 'retry') IS TRUE = (retry_at IS NOT NULL))
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE aiopgq.outbox IS 'Events, written by the transactions they are about; a relay publishes them.';
COMMENT ON COLUMN aiopgq.outbox.held IS
    'Why it is not in line: it failed and is tried again at retry_at, it is blocked behind such a one of its '
    'aggregate, it was set aside, or an operator skipped it. NULL = in line, or published.';

CREATE INDEX outbox_line ON aiopgq.outbox (id) WHERE published_at IS NULL AND held IS NULL;
CREATE INDEX outbox_held ON aiopgq.outbox (aggregate_type, aggregate_id, id)
    WHERE published_at IS NULL AND held IS NOT NULL;
CREATE INDEX outbox_retry ON aiopgq.outbox (retry_at) WHERE held = 'retry';
CREATE INDEX outbox_published ON aiopgq.outbox (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE aiopgq.relays (
    id uuid NOT NULL CONSTRAINT relays_key PRIMARY KEY,
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    beat bigint NOT NULL DEFAULT 0,
    lease interval NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE aiopgq.relays IS 'A row per live relay. One that is gone has lost all its shards; ids are never reused.';

CREATE TABLE aiopgq.outbox_shards (
    shard smallint NOT NULL CONSTRAINT outbox_shards_key PRIMARY KEY,
    holder uuid,
    CONSTRAINT there_are_256_shards CHECK (shard BETWEEN 0 AND 255)
) WITH (fillfactor = 50);
COMMENT ON TABLE aiopgq.outbox_shards IS 'Which relay publishes the events of a shard; whatever it writes names itself.';
INSERT INTO aiopgq.outbox_shards (shard) SELECT s FROM generate_series(0, 255) s;

CREATE FUNCTION aiopgq.event_shard(p_aggregate_type text, p_aggregate_id text) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN get_byte(sha256(convert_to(p_aggregate_type || '/' || p_aggregate_id, 'UTF8')), 0)::smallint;
COMMENT ON FUNCTION aiopgq.event_shard IS 'The shard of an aggregate, 0 to 255.';

-- An advisory lock of two numbers: this one for the table, and the shard.
CREATE FUNCTION aiopgq.outbox_lock() RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN 'aiopgq.outbox'::regclass::oid::bigint & 2147483647;
END
$$;

-- Slots 0 to 15 are those of queues.
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_16 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_16;
COMMENT ON SEQUENCE aiopgq.sleepers_16 IS 'Some relay sleeps until this moment, in milliseconds.';

CREATE FUNCTION aiopgq.number_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    NEW.shard := aiopgq.event_shard(NEW.aggregate_type, NEW.aggregate_id);
    IF NEW.shard IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(aiopgq.outbox_lock(), NEW.shard);
    END IF;
    -- Under the lock, whatever the INSERT said: a column's DEFAULT would be drawn before it.
    NEW.id := nextval('aiopgq.event_ids'::regclass);

    RETURN NEW;
END
$$;

CREATE TRIGGER number_event BEFORE INSERT ON aiopgq.outbox
    FOR EACH ROW EXECUTE FUNCTION aiopgq.number_event();

CREATE FUNCTION aiopgq.wake_relays() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    IF pg_sequence_last_value('aiopgq.sleepers_16'::regclass) > extract(epoch FROM clock_timestamp()) * 1000
       AND current_setting('aiopgq.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify(aiopgq.channel() || ':outbox', 'added');
    END IF;

    RETURN NULL;
END
$$;

CREATE TRIGGER wake_relays AFTER INSERT ON aiopgq.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION aiopgq.wake_relays();

CREATE FUNCTION aiopgq.add_event(
    p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb,
    p_headers jsonb DEFAULT '{}', p_event_id uuid DEFAULT gen_random_uuid()
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO aiopgq.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers)
    VALUES (p_event_id, p_aggregate_type, p_aggregate_id, p_event_type, p_payload, coalesce(p_headers, '{}'))
    ON CONFLICT (event_id) DO NOTHING;

    RETURN p_event_id;
END
$$;
COMMENT ON FUNCTION aiopgq.add_event IS
    'Add an event in the transaction of the caller; repeating a p_event_id adds nothing new.';

CREATE FUNCTION aiopgq.register_relay(p_id uuid, p_name text, p_host text, p_pid integer, p_lease double precision)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO aiopgq.relays (id, name, host, pid, lease)
    VALUES (p_id, p_name, p_host, p_pid, make_interval(secs => p_lease));
END
$$;

CREATE FUNCTION aiopgq.relay_beat(p_relay uuid, OUT alive boolean, OUT relays integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    UPDATE aiopgq.relays r SET beat = beat + 1, beat_at = clock_timestamp() WHERE r.id = p_relay;
    alive := FOUND;
    SELECT count(*) INTO relays FROM aiopgq.relays r WHERE r.beat_at > clock_timestamp() - r.lease;
END
$$;
COMMENT ON FUNCTION aiopgq.relay_beat IS
    'One beat. alive = false: others took its shards. relays: how many seem to live, to share the work by.';

CREATE FUNCTION aiopgq.relay_beats() RETURNS TABLE (id uuid, name text, beat bigint, lease double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN QUERY
    SELECT r.id, r.name, r.beat, extract(epoch FROM r.lease)::double precision FROM aiopgq.relays r;
END
$$;

CREATE FUNCTION aiopgq.forget_relay(p_relay uuid, p_beat bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    DELETE FROM aiopgq.relays r WHERE r.id = p_relay AND (p_beat IS NULL OR r.beat = p_beat);

    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION aiopgq.forget_relay IS
    'Take a relay''s shards from it: those whose holder has no row are free. With p_beat, only if that beat stands.';

CREATE FUNCTION aiopgq.take_shards(p_relay uuid, p_limit integer) RETURNS SETOF integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN QUERY
    UPDATE aiopgq.outbox_shards u SET holder = p_relay
    WHERE u.shard = ANY (ARRAY(
        SELECT s.shard FROM aiopgq.outbox_shards s
        WHERE s.holder IS NULL OR NOT EXISTS (SELECT FROM aiopgq.relays r WHERE r.id = s.holder)
        ORDER BY s.shard LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING u.shard::integer;
END
$$;

CREATE FUNCTION aiopgq.give_shards(p_relay uuid, p_shards integer[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    given integer;
BEGIN
    UPDATE aiopgq.outbox_shards u SET holder = NULL
    WHERE u.shard = ANY (ARRAY(
        SELECT s.shard FROM aiopgq.outbox_shards s
        WHERE s.holder = p_relay AND s.shard = ANY (p_shards) ORDER BY s.shard FOR UPDATE
    ));
    GET DIAGNOSTICS given = ROW_COUNT;

    RETURN given;
END
$$;

CREATE FUNCTION aiopgq.event_writers(OUT newest bigint, OUT shards integer[], OUT transactions text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    -- The order is the point: whoever drew an id up to newest locked its shard before, so if nobody holds the lock
    -- now, all those transactions have ended, and a statement sent after this one sees what they left.
    newest := coalesce(pg_sequence_last_value('aiopgq.event_ids'::regclass), 0);
    SELECT coalesce(array_agg(l.objid::bigint::integer), '{}'), coalesce(array_agg(l.virtualtransaction), '{}')
    INTO shards, transactions
    FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
      AND l.classid = aiopgq.outbox_lock()::bigint::oid
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
END
$$;
COMMENT ON FUNCTION aiopgq.event_writers IS
    'The last id drawn, and then the unfinished transactions that have added events, each with its shard.';

CREATE FUNCTION aiopgq.next_events(p_bounds bigint[], p_after bigint, p_limit integer, p_bytes bigint)
RETURNS TABLE (
    id bigint, shard integer, blocked boolean, event_id uuid, aggregate_type text, aggregate_id text, event_type text,
    payload jsonb, headers jsonb, created_at timestamptz, attempts integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT o.id, o.shard::integer, EXISTS (
               SELECT FROM aiopgq.outbox h
               WHERE h.aggregate_type = o.aggregate_type AND h.aggregate_id = o.aggregate_id AND h.id < o.id
                 AND h.published_at IS NULL AND h.held IS NOT NULL AND h.held IN ('retry', 'blocked')
           ),
           o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at, o.attempts
    FROM (
        SELECT l.*, sum(pg_column_size(l.payload)) OVER (ORDER BY l.id ROWS UNBOUNDED PRECEDING)
                    - pg_column_size(l.payload) AS bytes_before
        FROM (
            SELECT n.* FROM aiopgq.outbox n
            WHERE n.published_at IS NULL AND n.held IS NULL AND n.id > p_after AND n.id <= p_bounds[n.shard + 1]
            ORDER BY n.id LIMIT p_limit
        ) AS l
    ) AS o
    WHERE o.bytes_before < p_bytes
    ORDER BY o.id;
END
$$;
COMMENT ON FUNCTION aiopgq.next_events IS
    'The next events of each shard up to its bound, in order of id, at least one and else about p_bytes of them; blocked: '
    'one of its aggregate before it is held.';

CREATE FUNCTION aiopgq.retrying_events(p_relay uuid, p_limit integer)
RETURNS TABLE (
    id bigint, shard integer, wait double precision, event_id uuid, aggregate_type text, aggregate_id text,
    event_type text, payload jsonb, headers jsonb, created_at timestamptz, attempts integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT o.id, o.shard::integer, extract(epoch FROM o.retry_at - clock_timestamp())::double precision,
           o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at, o.attempts
    FROM aiopgq.outbox o
    WHERE o.held = 'retry'
      AND o.shard = ANY (ARRAY(SELECT s.shard FROM aiopgq.outbox_shards s WHERE s.holder = p_relay))
    ORDER BY o.retry_at LIMIT p_limit;
END
$$;
COMMENT ON FUNCTION aiopgq.retrying_events IS
    'Events of a relay that failed, and the seconds until they are tried again, those that are due first.';

-- Who writes about an event must hold its shard: a relay whose shards were taken changes nothing any more.
CREATE FUNCTION aiopgq.mark_published(p_relay uuid, p_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    UPDATE aiopgq.outbox u
    SET published_at = clock_timestamp(), attempts = u.attempts + 1, held = NULL, retry_at = NULL
    WHERE u.id = ANY (ARRAY(
        SELECT o.id FROM aiopgq.outbox o
        -- One that somebody skipped meanwhile has arrived all the same.
        WHERE o.id = ANY (p_ids) AND (o.published_at IS NULL OR o.held = 'skipped')
          AND EXISTS (SELECT FROM aiopgq.outbox_shards s WHERE s.shard = o.shard AND s.holder = p_relay)
        ORDER BY o.id FOR UPDATE
    ))
    RETURNING u.id;
END
$$;
COMMENT ON FUNCTION aiopgq.mark_published IS 'Mark events that a broker has confirmed. Returns those that were still the relay''s.';

CREATE FUNCTION aiopgq.hold_events(
    p_relay uuid, p_ids bigint[], p_errors text[], p_delays double precision[], p_most integer
) RETURNS TABLE (id bigint, held text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH failed AS (
        SELECT o.id, f.error, f.delay, o.attempts + 1 >= p_most AS enough
        FROM unnest(p_ids, p_errors, p_delays) AS f (id, error, delay) JOIN aiopgq.outbox o ON o.id = f.id
        WHERE o.published_at IS NULL
          AND EXISTS (SELECT FROM aiopgq.outbox_shards s WHERE s.shard = o.shard AND s.holder = p_relay)
        ORDER BY o.id FOR UPDATE OF o
    )
    UPDATE aiopgq.outbox u
    SET attempts = u.attempts + 1, last_error = left(f.error, 2000),
        held = CASE WHEN f.enough IS TRUE THEN 'set aside' ELSE 'retry' END,
        retry_at = CASE WHEN f.enough IS TRUE THEN NULL ELSE clock_timestamp() + make_interval(secs => f.delay) END
    FROM failed f WHERE u.id = f.id
    RETURNING u.id, u.held;
END
$$;
COMMENT ON FUNCTION aiopgq.hold_events IS
    'Note that events failed: to be tried again after a delay, or set aside once they failed p_most times (NULL: never).';

CREATE FUNCTION aiopgq.block_events(p_relay uuid, p_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    blocked integer;
BEGIN
    UPDATE aiopgq.outbox u SET held = 'blocked'
    WHERE u.id = ANY (ARRAY(
        SELECT o.id FROM aiopgq.outbox o
        WHERE o.id = ANY (p_ids) AND o.published_at IS NULL AND o.held IS NULL
          AND EXISTS (SELECT FROM aiopgq.outbox_shards s WHERE s.shard = o.shard AND s.holder = p_relay)
        ORDER BY o.id FOR UPDATE
    ));
    GET DIAGNOSTICS blocked = ROW_COUNT;

    RETURN blocked;
END
$$;
COMMENT ON FUNCTION aiopgq.block_events IS
    'Take events out of the line that wait for one of their aggregate that failed, so that nobody reads past them.';

CREATE FUNCTION aiopgq.free_events(p_relay uuid, p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    freed integer;
BEGIN
    UPDATE aiopgq.outbox u SET held = NULL
    WHERE u.id = ANY (ARRAY(
        SELECT o.id FROM aiopgq.outbox o
        WHERE o.published_at IS NULL AND o.held = 'blocked'
          AND o.shard = ANY (ARRAY(SELECT s.shard FROM aiopgq.outbox_shards s WHERE s.holder = p_relay))
          -- OFFSET keeps it a probe for each row, by the index of held events: joined, it took minutes. The odd
          -- comparison keeps it from the index of those to be tried again, which knows no aggregates.
          AND NOT EXISTS (
              SELECT FROM aiopgq.outbox h
              WHERE h.aggregate_type = o.aggregate_type AND h.aggregate_id = o.aggregate_id AND h.id < o.id
                AND h.published_at IS NULL AND h.held IS NOT NULL AND h.held || '' = 'retry'
              OFFSET 0
          )
        ORDER BY o.id LIMIT p_limit
        FOR UPDATE
    ));
    GET DIAGNOSTICS freed = ROW_COUNT;

    RETURN freed;
END
$$;
COMMENT ON FUNCTION aiopgq.free_events IS
    'Put blocked events back into the line, lowest ids first, whose aggregate waits for no failed one any more.';

CREATE FUNCTION aiopgq.retry_events(p_event_ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    UPDATE aiopgq.outbox u
    SET held = CASE WHEN u.held = 'retry' THEN 'retry' END,
        retry_at = CASE WHEN u.held = 'retry' THEN clock_timestamp() END,
        attempts = CASE WHEN u.held = 'set aside' THEN 0 ELSE u.attempts END
    WHERE u.id = ANY (ARRAY(
        SELECT o.id FROM aiopgq.outbox o
        WHERE o.published_at IS NULL AND o.held IN ('retry', 'set aside')
          AND (p_event_ids IS NULL OR o.event_id = ANY (p_event_ids))
        ORDER BY o.id FOR UPDATE
    ))
    RETURNING u.event_id;
    PERFORM pg_notify(aiopgq.channel() || ':outbox', 'mended');
END
$$;
COMMENT ON FUNCTION aiopgq.retry_events IS
    'Let failed events be tried at once, and those set aside return to the line. NULL: all of them.';

CREATE FUNCTION aiopgq.skip_events(p_event_ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    UPDATE aiopgq.outbox u SET held = 'skipped', retry_at = NULL, published_at = clock_timestamp()
    WHERE u.id = ANY (ARRAY(
        SELECT o.id FROM aiopgq.outbox o
        WHERE o.published_at IS NULL AND o.event_id = ANY (p_event_ids)
        ORDER BY o.id FOR UPDATE
    ))
    RETURNING u.event_id;
    PERFORM pg_notify(aiopgq.channel() || ':outbox', 'mended');
END
$$;
COMMENT ON FUNCTION aiopgq.skip_events IS
    'Give up events that are not published yet; what waits behind them goes on. They are kept like published ones.';

CREATE FUNCTION aiopgq.leave_relays(p_flag bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    IF aiopgq.wake_up(16, p_flag) THEN
        PERFORM pg_notify(aiopgq.channel() || ':outbox', 'left');
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.leave_relays IS 'Take down the flag of a relay that goes for good, and wake those who sleep by it.';

CREATE FUNCTION aiopgq.prune_events(p_retention double precision, p_limit integer, p_unpublished boolean DEFAULT false)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    pruned integer;
    oldest timestamptz := clock_timestamp() - make_interval(secs => p_retention);
BEGIN
    IF NOT pg_try_advisory_xact_lock('aiopgq.outbox'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    IF p_unpublished THEN
        DELETE FROM aiopgq.outbox d WHERE d.id = ANY (ARRAY(
            SELECT o.id FROM aiopgq.outbox o
            WHERE o.published_at IS NULL AND o.held IS NULL AND o.created_at < oldest
            ORDER BY o.id LIMIT p_limit FOR UPDATE SKIP LOCKED
        ));
    ELSE
        DELETE FROM aiopgq.outbox d WHERE d.id = ANY (ARRAY(
            SELECT o.id FROM aiopgq.outbox o
            WHERE o.published_at < oldest ORDER BY o.published_at LIMIT p_limit FOR UPDATE SKIP LOCKED
        ));
    END IF;
    GET DIAGNOSTICS pruned = ROW_COUNT;

    RETURN pruned;
END
$$;
COMMENT ON FUNCTION aiopgq.prune_events IS
    'Delete up to p_limit events published longer ago than p_retention seconds; with p_unpublished those added so long '
    'ago that no relay publishes, because something reads them from the log of changes.';

CREATE FUNCTION aiopgq.outbox_lag(
    OUT unpublished bigint, OUT oldest_seconds double precision, OUT retrying bigint, OUT blocked bigint,
    OUT set_aside bigint, OUT relays bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    waiting bigint;
    oldest timestamptz;
    oldest_held timestamptz;
BEGIN
    -- One index each; published events may be millions.
    SELECT count(*), min(o.created_at) INTO waiting, oldest
    FROM aiopgq.outbox o WHERE o.published_at IS NULL AND o.held IS NULL;
    SELECT count(*) FILTER (WHERE o.held = 'retry'), count(*) FILTER (WHERE o.held = 'blocked'),
           count(*) FILTER (WHERE o.held = 'set aside'), min(o.created_at) FILTER (WHERE o.held <> 'set aside')
    INTO retrying, blocked, set_aside, oldest_held
    FROM aiopgq.outbox o WHERE o.published_at IS NULL AND o.held IS NOT NULL;
    unpublished := waiting + retrying + blocked;
    oldest_seconds := extract(epoch FROM clock_timestamp() - least(oldest, oldest_held));
    SELECT count(*) INTO relays FROM aiopgq.relays r WHERE r.beat_at > clock_timestamp() - r.lease;
END
$$;
COMMENT ON FUNCTION aiopgq.outbox_lag IS
    'How far relays are behind: events to be published, the age of the oldest (NULL: none), those that failed, those '
    'blocked behind them, those set aside, and the relays that seem to live.';

CREATE FUNCTION aiopgq.outbox_events(
    p_status text, p_aggregate_type text, p_aggregate_id text, p_limit integer
) RETURNS TABLE (
    id bigint, event_id uuid, status text, aggregate_type text, aggregate_id text, event_type text, payload jsonb,
    headers jsonb, created_at timestamptz, published_at timestamptz, retry_at timestamptz, attempts integer,
    last_error text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN QUERY
    SELECT o.id, o.event_id,
           coalesce(o.held, CASE WHEN o.published_at IS NULL THEN 'waiting' ELSE 'published' END) AS standing,
           o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at, o.published_at,
           o.retry_at, o.attempts, o.last_error
    FROM (
        SELECT w.* FROM aiopgq.outbox w
        WHERE w.published_at IS NULL AND w.held IS NULL AND (p_status IS NULL OR p_status IN ('unpublished', 'waiting'))
        UNION ALL
        SELECT h.* FROM aiopgq.outbox h
        WHERE h.published_at IS NULL AND h.held IS NOT NULL
          AND (p_status IS NULL OR p_status = 'unpublished' OR h.held = p_status)
        UNION ALL
        SELECT p.* FROM aiopgq.outbox p
        WHERE p.published_at IS NOT NULL AND (p_status IS NULL OR p_status IN ('published', 'skipped'))
          AND (p_status IS NULL OR coalesce(p.held, 'published') = p_status)
    ) AS o
    WHERE (p_aggregate_type IS NULL OR o.aggregate_type = p_aggregate_type)
      AND (p_aggregate_id IS NULL OR o.aggregate_id = p_aggregate_id)
    ORDER BY o.id LIMIT p_limit;
END
$$;
COMMENT ON FUNCTION aiopgq.outbox_events IS
    'List events, oldest first; p_status: unpublished, waiting, retry, blocked, set aside, published, skipped, NULL any.';

INSERT INTO aiopgq.rights (grantee, privileges, kind, name) VALUES
    ('producer', 'EXECUTE', 'FUNCTION', 'add_event'),
    ('reader', 'EXECUTE', 'FUNCTION', 'outbox_events'),
    ('reader', 'EXECUTE', 'FUNCTION', 'outbox_lag');
SELECT aiopgq.renew_grants();
