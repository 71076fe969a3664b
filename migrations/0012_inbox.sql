-- 0012: the inbox: which messages of a broker have been received, by whom
-- phase: before
-- oldest code: 1
-- locks: none; everything is new
--
-- One plain table, no days that could be dropped: only a unique index over all of it says at every isolation level
-- that a message was received before, and lets the second delivery wait for the first one's transaction. An index of a
-- day does not know the messages of the day before, and around midnight both would be the first.

CREATE TABLE aiopgq.inbox (
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    CONSTRAINT inbox_key PRIMARY KEY (consumer, message_id),
    CONSTRAINT consumer_has_1_to_200_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 200),
    CONSTRAINT message_id_has_1_to_1000_bytes CHECK (octet_length(message_id) BETWEEN 1 AND 1000)
) WITH (
    -- A vacuum reads the whole key, so it is worth it for more than a few rows; what pruning leaves is used again.
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE aiopgq.inbox IS 'A row per message and consumer, written in the transaction of its effect.';

CREATE INDEX inbox_received ON aiopgq.inbox (received_at);

CREATE FUNCTION aiopgq.receive_message_within(
    p_consumer text, p_message_id text, p_timeout double precision,
    OUT first boolean, OUT held_by integer[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
-- Set again below, for this call; with this line the caller's own comes back at the end.
SET lock_timeout = 0
AS $$
DECLARE
    -- A lock that tells who holds a message. There are few, so that a transaction with many messages does not fill the
    -- table of locks; it is shared, so that nobody waits for it.
    sign integer := hashtextextended(p_message_id, hashtextextended(p_consumer, 0)) & 1023;
    home integer := 'aiopgq.inbox'::regclass::oid::bigint % 2147483647;
BEGIN
    -- In milliseconds; 0 is no limit.
    PERFORM set_config('lock_timeout', CASE WHEN p_timeout IS NULL THEN '0'
        ELSE least(greatest(ceil(p_timeout * 1000), 1), 2147483647)::bigint::text END, true);
    BEGIN
        -- Whoever is inserting the same message is waited for: committed, it is a duplicate; rolled back, it is ours.
        INSERT INTO aiopgq.inbox (consumer, message_id) VALUES (p_consumer, p_message_id)
        ON CONFLICT ON CONSTRAINT inbox_key DO NOTHING;
        first := FOUND;
    EXCEPTION WHEN lock_not_available THEN
        held_by := ARRAY(
            SELECT DISTINCT l.pid FROM pg_locks l
            WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.pid <> pg_backend_pid()
              AND l.classid::bigint = home AND l.objid::bigint = sign
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            ORDER BY l.pid
        );
        RETURN;
    END;
    IF first THEN
        PERFORM pg_advisory_xact_lock_shared(home, sign);
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.receive_message_within IS
    'Record a message in the transaction of its effect. first: do the effect; false: it was done before; NULL: another '
    'transaction has received it and not ended within p_timeout seconds (NULL waits for ever), and held_by are the '
    'processes it may be. Nothing of it aborts the transaction.';

CREATE FUNCTION aiopgq.receive_message(
    p_consumer text, p_message_id text, p_timeout double precision DEFAULT 10
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
DECLARE
    received record;
BEGIN
    received := aiopgq.receive_message_within(p_consumer, p_message_id, p_timeout);
    IF received.first IS NULL THEN
        RAISE lock_not_available USING
            MESSAGE = format('message "%s" of consumer "%s" is held by a transaction that has not ended for %s s '
                '(process %s)', p_message_id, p_consumer, p_timeout,
                coalesce(nullif(array_to_string(received.held_by, ', '), ''), 'unknown')),
            HINT = 'Look for it in pg_stat_activity; receive the message again when it has ended.';
    END IF;

    RETURN received.first;
END
$$;
COMMENT ON FUNCTION aiopgq.receive_message IS
    'Record a message in the transaction of its effect. True: do the effect; false: it was done before. Waits for a '
    'transaction that is receiving the same message, p_timeout seconds at most.';

CREATE FUNCTION aiopgq.forget_message(p_consumer text, p_message_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    DELETE FROM aiopgq.inbox i WHERE i.consumer = p_consumer AND i.message_id = p_message_id;

    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION aiopgq.forget_message IS 'Let a message be received again. False: it was not received.';

CREATE FUNCTION aiopgq.prune_inbox(
    p_window double precision, p_after timestamptz, p_limit integer,
    OUT pruned integer, OUT up_to timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    oldest timestamptz := clock_timestamp() - make_interval(secs => p_window);
BEGIN
    WITH gone AS (
        DELETE FROM aiopgq.inbox d
        WHERE d.ctid = ANY (ARRAY(
            SELECT i.ctid FROM aiopgq.inbox i
            WHERE i.received_at >= p_after AND i.received_at < oldest
            ORDER BY i.received_at LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING d.received_at
    )
    SELECT count(*), max(g.received_at) INTO pruned, up_to FROM gone g;
END
$$;
COMMENT ON FUNCTION aiopgq.prune_inbox IS
    'Delete up to p_limit messages received more than p_window seconds ago and not before p_after. The next batch begins '
    'at up_to: what was deleted before it stays in the index as long as anybody might still see it.';

INSERT INTO aiopgq.rights (grantee, privileges, kind, name) VALUES
    ('producer', 'EXECUTE', 'FUNCTION', 'receive_message'),
    ('producer', 'EXECUTE', 'FUNCTION', 'receive_message_within'),
    ('producer', 'EXECUTE', 'FUNCTION', 'forget_message'),
    ('reader', 'SELECT', 'TABLE', 'inbox'),
    ('worker', 'SELECT', 'TABLE', 'inbox');
SELECT aiopgq.renew_grants();
