"""The outbox is read by its indexes, also by plans that were made while it was empty; PostgreSQL tells."""

import re

import asyncpg
import pytest

RELAY = "00000000-0000-0000-0000-000000000001"
CALLS = {
    "next_events": ("SELECT FROM aiopgq.next_events(array_fill(1000000::bigint, '{256}'), 0, 1000, 8000000)", []),
    "retrying_events": ("SELECT FROM aiopgq.retrying_events($1, 1000)", [RELAY]),
    "mark_published": ("SELECT FROM aiopgq.mark_published($1, $2)", [RELAY, list(range(20001, 20101))]),
    "hold_events": ("SELECT FROM aiopgq.hold_events($1, $2, '{x}', '{1}', NULL)", [RELAY, [20200]]),
    "block_events": ("SELECT aiopgq.block_events($1, $2)", [RELAY, list(range(20301, 20401))]),
    "free_events": ("SELECT aiopgq.free_events($1, 5000)", [RELAY]),
    "prune_events": ("SELECT aiopgq.prune_events(0, 5000)", []),
    "outbox_lag": ("SELECT FROM aiopgq.outbox_lag()", []),
}
FILL = """
    INSERT INTO aiopgq.outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
    SELECT 'order', n::text, 'E', '0', now() - interval '1 day' FROM generate_series(1, 20000) n;
    INSERT INTO aiopgq.outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', n % 500, 'E', '0' FROM generate_series(1, 2000) n;
    INSERT INTO aiopgq.outbox (aggregate_type, aggregate_id, event_type, payload, held, retry_at)
    SELECT 'poison', n, 'E', '0', 'retry', now() FROM generate_series(1, 200) n;
    INSERT INTO aiopgq.outbox (aggregate_type, aggregate_id, event_type, payload, held)
    SELECT 'poison', n % 200 + 1, 'E', '0', 'blocked' FROM generate_series(1, 4000) n"""
EXPLAIN = """
    SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
    SET auto_explain.log_level = notice; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;
    SET client_min_messages = notice"""


@pytest.fixture
async def told(sql):
    """What the server tells about the plans of the connection `sql`."""
    told = []
    sql.add_log_listener(lambda _, message: told.append(message.message))
    try:
        await sql.execute("LOAD 'auto_explain'")
    except asyncpg.UndefinedFileError:
        pytest.skip("this server does not ship auto_explain")
    await sql.execute("SELECT aiopgq.register_relay($1, 'r', 'h', 1, 15)", RELAY)
    await sql.execute("SELECT aiopgq.take_shards($1, 256)", RELAY)
    return told


@pytest.mark.parametrize("knowledge", ["planned while empty", "never analyzed", "analyzed"])
async def test_the_outbox_is_read_by_its_indexes(sql, told, knowledge):
    if knowledge == "planned while empty":
        # After five runs PL/pgSQL may settle on one plan for all that follow.
        for statement, args in CALLS.values():
            for _ in range(7):
                await sql.fetch(statement, *args)
    await sql.execute(FILL)
    if knowledge == "analyzed":
        await sql.execute("ANALYZE")
    await sql.execute(EXPLAIN)

    scans = {}
    for name, (statement, args) in CALLS.items():
        told.clear()
        await sql.fetch(statement, *args)
        scans[name] = "\n".join(told)

    assert {name: plan for name, plan in scans.items() if re.search(r"Seq Scan on outbox\b", plan)} == {}
    # Whoever joins held events with themselves reads each of them for each.
    assert most_loops(scans["free_events"]) < 5 * 4200
    assert most_loops(scans["next_events"]) < 5 * 2000


def most_loops(plan):
    """Return the most rows that one node of a plan has given, all its loops together."""
    found = re.findall(r"actual rows=([\d.]+) loops=(\d+)", plan)
    assert found
    return max(float(rows) * int(loops) for rows, loops in found)
