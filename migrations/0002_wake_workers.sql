-- 0002: notify only when somebody sleeps
-- phase: before
-- oldest code: 1
-- locks: none; everything is new
--
-- A NOTIFY makes its transaction hold a cluster-wide lock through the WAL flush, so a row is announced only
-- while a worker of its slot sleeps. "Somebody sleeps until …" is kept in unlogged sequences, one per slot of
-- queues: a sequence is not MVCC, so it neither bloats nor depends on the snapshot of the producer that reads it.

CREATE UNLOGGED SEQUENCE aiopgq.sleepers_0 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_1 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_2 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_3 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_4 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_5 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_6 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_7 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_8 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_9 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_10 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_11 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_12 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_13 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_14 MINVALUE 0 START 0;
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_15 MINVALUE 0 START 0;
-- At least as high as the highest of them, and never lowered: producers read it first.
CREATE UNLOGGED SEQUENCE aiopgq.sleepers_any MINVALUE 0 START 0;
-- How often each flag was lowered: one that was not, however often others raised it, has stood all the time.
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_0;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_1;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_2;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_3;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_4;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_5;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_6;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_7;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_8;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_9;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_10;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_11;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_12;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_13;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_14;
CREATE UNLOGGED SEQUENCE aiopgq.lowerings_15;

CREATE UNLOGGED SEQUENCE aiopgq.waiters MINVALUE 0 START 0;
COMMENT ON SEQUENCE aiopgq.waiters IS 'Somebody waits for results until this moment, in milliseconds.';

CREATE FUNCTION aiopgq.slot(p_queue text) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN get_byte(sha256(convert_to(p_queue, 'UTF8')), 0) & 15;
COMMENT ON FUNCTION aiopgq.slot IS 'The slot of sleepers a queue belongs to; workers compute the same in Python.';

CREATE FUNCTION aiopgq.milliseconds(p_moment timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (extract(epoch FROM p_moment) * 1000)::bigint;

CREATE FUNCTION aiopgq.channel() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN (
        SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = 'aiopgq.jobs'::regclass
    );
END
$$;
COMMENT ON FUNCTION aiopgq.channel IS 'The NOTIFY channel: the name of this schema.';

CREATE FUNCTION aiopgq.wake_queue(p_queue text, p_due timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    IF pg_sequence_last_value(('aiopgq.sleepers_' || aiopgq.slot(p_queue))::regclass)
       > aiopgq.milliseconds(greatest(p_due, clock_timestamp()))
       AND current_setting('aiopgq.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify(aiopgq.channel(), p_queue);
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.wake_queue IS
    'The one place that announces a pending job: notify if somebody sleeps beyond the moment it is due.';

CREATE FUNCTION aiopgq.wake_after_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    line record;
BEGIN
    -- Every producer pays for this. Whether anybody sleeps at all is a third of what the query costs, in which
    -- what aiopgq.slot and aiopgq.milliseconds say is written out: either would cost as much as all the rest.
    IF coalesce(pg_sequence_last_value('aiopgq.sleepers_any'::regclass), 0)
       <= extract(epoch FROM clock_timestamp()) * 1000 THEN
        RETURN NULL;
    END IF;
    FOR line IN
        SELECT n.queue, min(n.run_at) AS due
        FROM new_jobs n
        -- What has arrived outside, for a limit or an order, is to be let in.
        WHERE n.held IS NULL OR n.held LIKE 'new %'
        GROUP BY n.queue
        HAVING pg_sequence_last_value(
                ('aiopgq.sleepers_' || (get_byte(sha256(convert_to(n.queue, 'UTF8')), 0) & 15))::regclass)
            > extract(epoch FROM clock_timestamp()) * 1000
    LOOP
        PERFORM aiopgq.wake_queue(line.queue, line.due);
    END LOOP;

    RETURN NULL;
END
$$;

CREATE TRIGGER wake_workers AFTER INSERT ON aiopgq.jobs
    REFERENCING NEW TABLE AS new_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION aiopgq.wake_after_insert();

-- The advisory lock makes read-then-set one step; raising is rare, announcing never takes the lock.
CREATE FUNCTION aiopgq.raise_flag(p_flag regclass, p_until bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(p_flag::oid::bigint);

    RETURN setval(p_flag, greatest(coalesce(pg_sequence_last_value(p_flag), 0), p_until) + 1);
END
$$;

CREATE FUNCTION aiopgq.fall_asleep(
    p_slots integer[], p_seen bigint[], p_for double precision, p_lowered bigint[] DEFAULT NULL,
    OUT flags bigint[], OUT lowered bigint[], OUT unbroken boolean, OUT horizon bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    until bigint := aiopgq.milliseconds(clock_timestamp()) + (p_for * 1000)::bigint;
    flag regclass;
    times bigint;
BEGIN
    flags := '{}';
    lowered := '{}';
    unbroken := true;
    -- Before all others, as everybody does, so that no two wait for each other. Relays are no concern of this one.
    IF p_slots[1] < 16 THEN
        PERFORM aiopgq.raise_flag('aiopgq.sleepers_any', until);
    END IF;
    FOR i IN 1 .. cardinality(p_slots) LOOP
        flag := ('aiopgq.sleepers_' || p_slots[i])::regclass;
        -- Nobody lowers it between the look and the raise.
        PERFORM pg_advisory_xact_lock(flag::oid::bigint);
        times := coalesce(pg_sequence_last_value(('aiopgq.lowerings_' || p_slots[i])::regclass), 0);
        unbroken := unbroken AND coalesce(
            times = p_lowered[i]
            AND pg_sequence_last_value(flag) >= p_seen[i]
            AND p_seen[i] > aiopgq.milliseconds(clock_timestamp()), false);
        flags := flags || aiopgq.raise_flag(flag, until);
        lowered := lowered || times;
    END LOOP;

    -- Every producer that read a lower flag had inserted its row before, so it owns an older transaction id.
    IF NOT unbroken THEN
        horizon := pg_current_xact_id()::text::bigint;
    END IF;
END
$$;
COMMENT ON FUNCTION aiopgq.fall_asleep IS
    'Raise the flag of each slot. unbroken: all have stood since they were seen, so no job can have been missed; '
    'else horizon is the transaction id that must pass before the sleeper may trust notifications.';

CREATE FUNCTION aiopgq.horizon_passed(p_horizon bigint) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= p_horizon;

CREATE FUNCTION aiopgq.wake_up(p_slot integer, p_flag bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    flag regclass := ('aiopgq.sleepers_' || p_slot)::regclass;
BEGIN
    PERFORM pg_advisory_xact_lock(flag::oid::bigint);
    IF pg_sequence_last_value(flag) = p_flag THEN
        PERFORM nextval(('aiopgq.lowerings_' || p_slot)::regclass);
        PERFORM setval(flag, 0);

        RETURN true;
    END IF;

    RETURN false;
END
$$;
COMMENT ON FUNCTION aiopgq.wake_up IS
    'Lower the flag of a slot if it still holds the value its sleeper gave it; tell whether it did.';

CREATE FUNCTION aiopgq.leave_sleepers(p_slots integer[], p_flags bigint[], p_queues text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_slots) LOOP
        IF aiopgq.wake_up(p_slots[i], p_flags[i]) THEN
            -- Others may sleep by the same flag: they look, and raise it again.
            PERFORM pg_notify(aiopgq.channel(), p_queues[i]);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.leave_sleepers IS
    'Take down the flags of a sleeper that goes for good, and wake those who relied on them by a queue of each slot.';

CREATE FUNCTION aiopgq.await_results(p_for double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    PERFORM aiopgq.raise_flag(
        'aiopgq.waiters'::regclass, aiopgq.milliseconds(clock_timestamp()) + (p_for * 1000)::bigint);
END
$$;

CREATE FUNCTION aiopgq.tell_waiters(p_ids uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    chunk text;
BEGIN
    IF coalesce(pg_sequence_last_value('aiopgq.waiters'::regclass), 0)
       <= aiopgq.milliseconds(clock_timestamp()) THEN
        RETURN;
    END IF;

    -- A payload holds fewer than 8,000 bytes: 200 ids of 36 characters and a comma.
    FOR chunk IN
        SELECT string_agg(i.id::text, ',')
        FROM unnest(p_ids) WITH ORDINALITY i(id, n)
        GROUP BY (i.n - 1) / 200
    LOOP
        PERFORM pg_notify(aiopgq.channel() || ':done', chunk);
    END LOOP;
END
$$;
COMMENT ON FUNCTION aiopgq.tell_waiters IS 'Announce finished jobs while somebody waits for results.';
