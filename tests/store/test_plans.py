"""Each statement reads by the indexes its header names, whatever the planner knows of the tables.

The statements call functions, so auto_explain tells the plans of what happens inside.
"""

import re
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from aiopgq._store.statements import statement

WORKER, CLAIM = UUID(int=1), UUID(int=2)
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)

# 20,000 jobs: in line in two queues and three lanes, waiting, due, claimed by one of many workers, held.
FILL = """
INSERT INTO aiopgq.jobs
    (id, queue, task, priority, place, run_at, status, worker_id, claim_id, attempts, held)
SELECT
    gen_random_uuid(), 'queue' || n % 2, 'task' || n % 5, n % 3 * 100,
    CASE WHEN kind NOT IN ('waits', 'due') THEN nextval('aiopgq.places') END,
    clock_timestamp() + CASE kind WHEN 'waits' THEN interval '1 day' ELSE interval '-1 minute' END,
    CASE kind WHEN 'claimed' THEN 'claimed' ELSE 'pending' END,
    CASE kind WHEN 'claimed' THEN $1::uuid END, CASE kind WHEN 'claimed' THEN $2::uuid END,
    CASE kind WHEN 'claimed' THEN 1 ELSE 0 END, CASE kind WHEN 'held' THEN 'unknown task' END
FROM generate_series(1, 20000) n
CROSS JOIN LATERAL (SELECT CASE
    WHEN n % 20 = 0 THEN 'waits' WHEN n % 20 = 1 THEN 'due'
    WHEN n % 20 = 2 THEN 'claimed' WHEN n % 20 = 3 THEN 'held' ELSE 'ready' END) AS k (kind)
"""
FILL_MORE = """
INSERT INTO aiopgq.dead_letters
    (id, run_at, created_at, attempts, max_attempts, events_count, priority, queue, task, args)
SELECT gen_random_uuid(), now(), now(), 1, 1, 0, 0, 'queue0', 'task0', '{}' FROM generate_series(1, 20000);
INSERT INTO aiopgq.archive
    (id, run_at, created_at, completed_at, attempts, max_attempts, events_count, priority, status,
     queue, task, args)
SELECT gen_random_uuid(), now(), now(), now(), 1, 1, 0, 0, 'completed', 'queue0', 'task0', '{}'
FROM generate_series(1, 20000);
INSERT INTO aiopgq.workers (id, lease, pid, concurrency, name, host, version, queues, tasks)
SELECT gen_random_uuid(), interval '1 minute', 1, 1, 'w', 'h', '0', '{queue0}', '{task0}'
FROM generate_series(1, 2000);
INSERT INTO aiopgq.inbox (received_at, consumer, message_id)
SELECT now() - make_interval(secs => 10 * n), 'consumer' || n % 3, n::text FROM generate_series(1, 20000) n;
"""
REGISTER = """
INSERT INTO aiopgq.workers (id, lease, pid, concurrency, name, host, version, queues, tasks)
VALUES ($1, interval '1 minute', 1, 1, 'w', 'h', '0', '{queue0}', '{task0}')
"""

ONE_JOB = [[WORKER], ["q"], ["t"], ["{}"], [1], [None], [None], [1], [None], [None]]
LANES = [["queue0", "queue1"], [200, 100], [0, 0]]

# The statements that name an index, but for purge: a person at the keyboard may wait for a table to be read.
# They get the ids of claimed jobs.
CALLS = {
    "claim": lambda _: [WORKER, uuid4(), 10, ["task1", "task2"], ["queue0", "queue1"], [10, 10], *LANES],
    "claim, all lanes": lambda _: [
        WORKER, uuid4(), 10, ["task1", "task2"], ["queue0", "queue1"], [10, 10], None, None, None,
    ],
    "reclaim": lambda _: [WORKER, CLAIM],
    "promote": lambda _: [EARLIEST, 100, ["task1"]],
    "complete": lambda ids: [ids, [CLAIM] * len(ids), [None] * len(ids), True],
    "complete, keep nothing": lambda ids: [ids, [CLAIM] * len(ids), [None] * len(ids), False],
    "bury": lambda ids: [ids, [CLAIM] * len(ids), ["r"] * len(ids), ["{}"] * len(ids)],
    "cancel": lambda ids: [ids, [CLAIM] * len(ids), ["r"] * len(ids), True],
    "reschedule": lambda ids: [
        ids, [CLAIM] * len(ids), [0.0] * len(ids), [False] * len(ids), ["r"] * len(ids), ["{}"] * len(ids),
        True,
    ],
    "mark": lambda ids: [
        ids, [CLAIM] * len(ids), [1.0] * len(ids), [50.0] * len(ids), ["s"] * len(ids), [1] * len(ids),
    ],
    "begin_run": lambda ids: [ids[0], CLAIM],
    "still_claimed": lambda ids: [ids[0], CLAIM, False],
    "complete_within": lambda ids: [ids[0], CLAIM, None, True],
    "heartbeat": lambda _: [WORKER, False],
    "rescue_worker": lambda _: [WORKER, 0, True],
    "retire_worker": lambda _: [WORKER],
    "enqueue_once": lambda _: ONE_JOB,
    "enqueue_unique": lambda _: [
        [WORKER, CLAIM], *ONE_JOB[1:3], ["{}"] * 2, *ONE_JOB[4:8], [None] * 2, [None] * 2,
        ["limit/1"] * 2, ["order/1"] * 2, [True] * 2, ["k"] * 2, ["skip"] * 2,
        [None] * 2, [None] * 2, True,
    ],
    "prune_holds": lambda _: [100],
    "count_ready": lambda _: ["queue0", 100],
    "cancel_job": lambda ids: [ids[0]],
    "job_info": lambda ids: [ids[0]],
    "job_status": lambda ids: [ids[0]],
    "replay": lambda ids: [ids],
    "free_known": lambda _: [["task1"], 100],
    "receive_message": lambda _: ["consumer1", "7", 10.0],
    "forget_message": lambda _: ["consumer1", "7"],
    "prune_inbox": lambda _: [86_400.0, EARLIEST, 100],
    "enqueue_restrained": lambda _: [*ONE_JOB, ["limit/1"], ["order/1"], [True]],
    "declare_limits": lambda _: [["limit"], [3], [None], [None], [None], ["other"]],
    "limit_queues": lambda _: [["queue0"], [3], [None], [None], [None], ["queue1"]],
    "let_in_stranded": lambda _: [],
    "forget_gates": lambda _: [100],
    "pause_queue": lambda _: ["queue0"],
    "resume_queue": lambda _: ["queue0"],
    "pause_task": lambda _: ["task0"],
    "resume_task": lambda _: ["task0"],
    "free_resumed": lambda _: [100],
}  # fmt: skip


class Session:
    """A connection whose server tells the plan of everything it runs."""

    def __init__(self, connection):
        self._connection = connection
        self._told = []
        connection.add_log_listener(lambda _, message: self._told.append(message.message))

    async def load(self):
        await self._connection.execute("LOAD 'auto_explain'")
        await self._connection.execute(
            "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            "SET auto_explain.log_level = notice; SET client_min_messages = notice"
        )

    async def plans(self, call, ids):
        """Run a statement, undo it, and return the plans it took."""
        # asyncpg asks what types it does not know yet.
        await self._connection.prepare(statement(call.partition(",")[0]))
        self._told.clear()
        undo = self._connection.transaction()
        await undo.start()
        await self._connection.fetch(statement(call.partition(",")[0]), *CALLS[call](ids))
        await undo.rollback()
        return [told for told in self._told if "plan:" in told]


async def fill(connection, *, analyze):
    await connection.execute(FILL, WORKER, CLAIM)
    await connection.execute(FILL_MORE)
    if analyze:
        await connection.execute("ANALYZE")


async def claimed(connection):
    rows = await connection.fetch("SELECT id FROM aiopgq.jobs WHERE claim_id = $1 LIMIT 100", CLAIM)
    return [row["id"] for row in rows]


@pytest.mark.parametrize("plans", ["generic", "custom"])
@pytest.mark.parametrize(
    "knowledge", ["never analyzed", "analyzed", "planned while empty", "planned and analyzed while empty again"]
)
async def test_statements_read_jobs_by_the_indexes_their_headers_name(dsn, knowledge, plans):
    connection = await asyncpg.connect(dsn)
    try:
        session = Session(connection)
        try:
            await session.load()
        except asyncpg.UndefinedFileError:
            pytest.skip("this server does not ship auto_explain")
        await connection.execute(f"SET plan_cache_mode = force_{plans}_plan")
        # What the tests say of statistics must hold until they end.
        await connection.execute("ALTER TABLE aiopgq.jobs SET (autovacuum_enabled = off)")
        await connection.execute("ALTER TABLE aiopgq.dead_letters SET (autovacuum_enabled = off)")
        await connection.execute("ALTER TABLE aiopgq.inbox SET (autovacuum_enabled = off)")
        await connection.execute(REGISTER, WORKER)
        if "again" in knowledge:
            # As after a drain: pages that hold nothing make the planner believe that this is how it stays.
            await fill(connection, analyze=False)
            await connection.execute(
                "DELETE FROM aiopgq.jobs; DELETE FROM aiopgq.dead_letters; DELETE FROM aiopgq.inbox; ANALYZE"
            )
        if "empty" in knowledge:
            # After five runs PL/pgSQL may settle on one plan for all that follow.
            for call in CALLS:
                for _ in range(7):
                    await session.plans(call, [uuid4(), uuid4()])
        await fill(connection, analyze=knowledge == "analyzed")
        ids = await claimed(connection)

        found = {call: complaints(call, await session.plans(call, ids)) for call in CALLS}
    finally:
        await connection.close()

    assert {call: wrong for call, wrong in found.items() if wrong} == {}


def complaints(call, plans):
    """Return what a reader of the header would not expect in the plans."""
    together = "\n".join(plans)
    # An index of a partition carries the name of the table it is on.
    used = re.findall(
        r"(?:using|Index Scan on|Conflict Arbiter Indexes:) (\w+)",
        re.sub(r"\barchive_\d{8}_\w+", "archive_key", together),
    )
    header = re.search(r"^-- Index: +(.+)$", statement(call.partition(",")[0]), re.MULTILINE)[1]
    wrong = [f"does not use {index}" for index in header.split(", ") if index not in used]
    # Only today's partition holds anything; and to count workers, their table is read.
    wrong += re.findall(rf"Seq Scan on (?:jobs|archive_{datetime.now(UTC):%Y%m%d}|dead_letters|inbox)\b.*", together)

    # An index that is read without a condition is read from end to end.
    wrong += re.findall(
        r"(?:Index|Index Only) Scan using \w+ on (?:jobs|archive_\d{8}|dead_letters|inbox)\b.*\n(?! *Index Cond)",
        together,
    )
    if call.partition(",")[0] in {"claim", "promote"} and "Sort" in together:
        wrong.append("sorts, so that no lane stops at its limit")

    return [*wrong, *plans] if wrong else []


async def test_a_sweep_reads_the_dead_head_of_a_line_once(dsn):
    connection, holder = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT count(*) FROM aiopgq.jobs")
            for _ in range(2):
                await connection.execute(
                    "INSERT INTO aiopgq.jobs (id, task, place)"
                    "SELECT gen_random_uuid(), 't', nextval('aiopgq.places') FROM generate_series(1, 5000)"
                )
                await connection.execute("DELETE FROM aiopgq.jobs")
            await connection.execute(
                "INSERT INTO aiopgq.jobs (id, task, place) VALUES ($1, 't', nextval('aiopgq.places'))", WORKER
            )
            once = await buffers(connection, "aiopgq.find_lanes('{default}')")
            sweep = await buffers(
                connection,
                f"aiopgq.claim_lanes('{WORKER}', '{CLAIM}', 1, '{{t}}', '{{default}}', '{{1}}', NULL, NULL, NULL)",
            )
    finally:
        await connection.close()
        await holder.close()

    # At least a page of the index for each few hundred dead entries, and their pages of the table.
    assert once > 50
    assert once <= sweep < 1.5 * once


async def buffers(connection, function):
    """Return how many pages a function touches when it is called the second time."""
    for _ in range(2):
        undo = connection.transaction()
        await undo.start()
        rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM {function}")  # noqa: S608  # constants
        await undo.rollback()
    found = re.search(r"Buffers: shared (.*)", "\n".join(row[0] for row in rows))[1]
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", found))
