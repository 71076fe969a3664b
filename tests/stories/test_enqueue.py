"""Enqueue: a call becomes a row, once, whatever happens to the connection."""

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
from proxy import Proxy
from support import eventually

from aiopgq import App
from aiopgq._flow import enqueue as flow
from aiopgq._store.jobs import Jobs
from aiopgq._store.trouble import Undefined
from aiopgq.errors import EnqueueUnknown, RowRefused, StoreUnavailable


def app_on(dsn, **settings):
    """An App with one task that greets and one that always fails."""
    jobs = App(dsn, **settings)

    @jobs.task(name="greet")
    async def greet(name: str = "") -> str:
        return f"hello {name}"

    @jobs.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    return jobs


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
async def jobs(dsn):
    async with app_on(dsn) as jobs:
        yield jobs


@pytest.fixture
def greet(jobs):
    return jobs.task_named("greet")


@pytest.fixture
async def proxy(dsn):
    async with Proxy(dsn) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy):
    """An App behind the proxy, whose connection has enqueued before."""
    async with app_on(proxy.dsn) as far:
        await far.task_named("greet").enqueue("first")
        yield far


@pytest.fixture
def soon(monkeypatch):
    """Callers are told after a second instead of ten that PostgreSQL does not answer."""
    monkeypatch.setattr(flow, "DEADLINE", 1.0)


@asynccontextmanager
async def nobody_may_insert(dsn):
    """Hold a lock that every insert of a job waits for."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE aiopgq.jobs IN SHARE MODE")
            yield
    finally:
        await connection.close()


async def count(sql):
    return await sql.fetchval("SELECT count(*) FROM aiopgq.all_jobs")


async def transactions(sql):
    return await sql.fetchval("SELECT count(DISTINCT xmin::text) FROM aiopgq.jobs")


async def names(sql):
    """The arguments of the waiting jobs, in the order of their line."""
    return [row[0] for row in await sql.fetch("SELECT args->>'name' FROM aiopgq.jobs ORDER BY place")]


async def an_insert_waits(sql):
    async def waits():
        return await sql.fetchval(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'aiopgq%'"
        )

    await eventually(waits, what="an insert waits for the lock")


async def work_all(dsn):
    async with app_on(dsn) as near:
        await near.worker(burst=True, poll_interval=0.1).run()


# The batcher.


async def test_each_of_fifty_callers_is_answered_when_his_own_row_is_committed(greet, sql):
    one_at_a_time = asyncio.Lock()

    async def call(number):
        job = await greet.enqueue(str(number))
        async with one_at_a_time:
            return await sql.fetchval("SELECT args->>'name' FROM aiopgq.jobs WHERE id = $1", job.id)

    assert await asyncio.gather(*map(call, range(50))) == [str(number) for number in range(50)]


async def test_fifty_callers_share_a_commit(greet, sql):
    await asyncio.gather(*(greet.enqueue(str(number)) for number in range(50)))
    assert await transactions(sql) <= 2


async def test_calls_gather_while_a_flush_is_under_way_and_go_together_next(dsn, greet, sql):
    async with nobody_may_insert(dsn):
        first = asyncio.create_task(greet.enqueue("first"))
        await an_insert_waits(sql)
        others = [asyncio.create_task(greet.enqueue(str(number))) for number in range(30)]
        await asyncio.sleep(0)
        assert not first.done()
    await asyncio.gather(first, *others)
    assert await transactions(sql) == 2
    assert await names(sql) == ["first", *(str(number) for number in range(30))]


async def test_large_jobs_do_not_gather_into_a_huge_statement(greet, sql):
    large = [f"{number} " + "x" * 900_000 for number in range(10)]
    await asyncio.gather(*map(greet.enqueue, large))
    assert await transactions(sql) == 2
    assert await names(sql) == large


async def test_thousands_of_callers_at_once_go_in_batches_of_a_thousand(greet, sql):
    await asyncio.gather(*(greet.enqueue(str(number)) for number in range(2500)))
    assert await transactions(sql) == 3
    assert await names(sql) == [str(number) for number in range(2500)]


async def test_a_caller_that_is_cancelled_does_not_undo_its_row(dsn, greet, sql):
    async with nobody_may_insert(dsn):
        impatient = asyncio.create_task(greet.enqueue("impatient"))
        await an_insert_waits(sql)
        late = asyncio.create_task(greet.enqueue("late"))
        await asyncio.sleep(0)
        for caller in (impatient, late):
            caller.cancel()
        await asyncio.wait([impatient, late])
        assert impatient.cancelled()
        assert late.cancelled()
    await greet.enqueue("patient")
    assert await names(sql) == ["impatient", "late", "patient"]


@pytest.mark.parametrize(
    ("field", "value", "sqlstate"),
    [("args", "{", "22P02"), ("args", "[1]", "23514"), ("max_attempts", 0, "23514"), ("queue", "", "23514")],
)
async def test_a_row_that_postgresql_refuses_fails_alone(jobs, greet, sql, field, value, sqlstate):
    calls = [greet.call(str(number)) for number in range(20)]
    for bad in (calls[3], calls[17]):
        setattr(bad.job, field, value)

    answers = await asyncio.gather(*map(jobs.enqueue_one, calls), return_exceptions=True)

    refused = [number for number, answer in enumerate(answers) if isinstance(answer, RowRefused)]
    assert refused == [3, 17]
    assert {answers[number].sqlstate for number in refused} == {sqlstate}
    assert await names(sql) == [str(number) for number in range(20) if number not in refused]


async def test_closing_waits_for_enqueues_under_way(dsn, sql):
    jobs = app_on(dsn)
    async with nobody_may_insert(dsn):
        await jobs.__aenter__()
        call = asyncio.create_task(jobs.task_named("greet").enqueue("late"))
        await an_insert_waits(sql)
        closing = asyncio.create_task(jobs.__aexit__())
        await asyncio.sleep(0)
        assert not closing.done()
    await closing
    assert call.done()
    assert (await call).id == await sql.fetchval("SELECT id FROM aiopgq.jobs")


# Outages.


async def test_a_backend_that_dies_in_the_middle_of_a_flush_loses_no_job_and_doubles_none(dsn, greet, sql):
    async with nobody_may_insert(dsn):
        calls = [asyncio.create_task(greet.enqueue(str(number))) for number in range(20)]
        await an_insert_waits(sql)
        await sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'aiopgq enqueue'"
        )
    answered = {job.id for job in await asyncio.gather(*calls)}
    assert answered == {row[0] for row in await sql.fetch("SELECT id FROM aiopgq.jobs")}
    assert await count(sql) == 20


async def test_a_lost_answer_makes_no_second_job(proxy, far, sql):
    proxy.lose_answer = True
    greet = far.task_named("greet")
    calls = [asyncio.create_task(greet.enqueue(str(number))) for number in range(10)]
    await eventually(lambda: count(sql), what="the rows are committed")
    await eventually(lambda: proxy.refusing, what="the answer is lost")
    assert not any(call.done() for call in calls)
    proxy.refusing = False
    handles = await asyncio.gather(*calls)
    assert not any(job.existing for job in handles)
    assert await names(sql) == ["first", *(str(number) for number in range(10))]


async def test_a_lost_answer_makes_no_second_job_even_if_the_job_is_done_by_then(dsn, proxy, far, sql):
    proxy.lose_answer = True
    done = asyncio.create_task(far.task_named("greet").enqueue("once"))
    dead = asyncio.create_task(far.task_named("fail").enqueue())
    await eventually(lambda: proxy.refusing, what="the answer is lost")
    await work_all(dsn)
    proxy.refusing = False
    handles = await asyncio.gather(done, dead)
    assert [(await job.info()).status for job in handles] == ["completed", "failed"]
    assert await count(sql) == 3


async def test_a_lost_answer_makes_no_second_bulk(proxy, far, sql):
    greet = far.task_named("greet")
    await far.enqueue_many([greet.call("second")])
    proxy.lose_answer = True
    bulk = asyncio.create_task(far.enqueue_many([greet.call(str(number)) for number in range(10)]))
    await eventually(lambda: proxy.refusing, what="the answer is lost")
    proxy.refusing = False
    assert not any(job.existing for job in await bulk)
    assert await count(sql) == 12


async def test_whatever_happens_to_connections_each_acknowledged_job_is_there_once(dsn, proxy, far, sql):
    greet = far.task_named("greet")
    acknowledged = []
    calm = asyncio.Event()

    async def produce(producer):
        for number in itertools.count():
            if calm.is_set():
                return
            mine = [f"{producer} {number} {part}" for part in range(3)]
            await greet.enqueue(mine[0])
            await greet.options(id=uuid4()).enqueue(mine[1])
            await far.enqueue_many([greet.call(mine[2])])
            acknowledged.extend(mine)

    async def lose_an_answer():
        proxy.lose_answer = True
        await eventually(lambda: proxy.refusing, what="an answer is lost")

    async def refuse():
        before = proxy.turned_away
        proxy.refusing = True
        proxy.cut()
        await eventually(lambda: proxy.turned_away > before, what="somebody is turned away")

    async def terminate():
        await sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name IN ('aiopgq enqueue', 'aiopgq app')"
        )

    async def cut():
        proxy.cut()

    producers = [asyncio.create_task(produce(name)) for name in "abcdefgh"]
    async with app_on(dsn) as near, near.worker():
        for disturb in (lose_an_answer, cut, refuse, terminate) * 5:
            await disturb()
            proxy.refusing = False
            before = len(acknowledged)
            await eventually(lambda before=before: len(acknowledged) > before, what="work goes on")
        calm.set()
        await asyncio.gather(*producers)
    known = await sql.fetch("SELECT args->>'name' FROM aiopgq.all_jobs")
    assert sorted(row[0] for row in known) == sorted([*acknowledged, "first"])


async def test_an_outage_shorter_than_the_deadline_is_waited_for(proxy, far, sql):
    proxy.refusing = True
    proxy.cut()
    call = asyncio.create_task(far.task_named("greet").enqueue("patient"))
    await eventually(lambda: proxy.turned_away, what="the batcher tries in vain")
    proxy.refusing = False
    job = await call
    assert (await job.info()).args == {"name": "patient"}
    assert await count(sql) == 2


async def test_an_outage_longer_than_the_deadline_is_told_with_the_id_to_repeat_with(proxy, far, sql, soon):
    greet = far.task_named("greet")
    proxy.refusing = True
    proxy.cut()
    with pytest.raises(StoreUnavailable, match="options") as told:
        await greet.enqueue("again")
    assert told.value.id.version == 7
    assert str(told.value.id) in str(told.value)
    assert told.value.__cause__ is not None
    assert await count(sql) == 1

    proxy.refusing = False
    repeated = [await greet.options(id=told.value.id).enqueue("again") for _ in range(2)]
    assert [(job.id, job.existing) for job in repeated] == [(told.value.id, False), (told.value.id, True)]
    assert await count(sql) == 2


@pytest.mark.parametrize("sent", ["one", "bulk"])
async def test_the_reason_is_told_even_if_the_time_was_up_in_the_middle_of_the_last_try(
    far, sql, soon, monkeypatch, sent
):
    greet = far.task_named("greet")
    full = StoreUnavailable("enqueue jobs (DiskFullError: No space left on device)")

    tries = itertools.count()

    async def in_vain(*_, **_options):
        if next(tries) == 0:
            raise full
        await asyncio.Event().wait()

    monkeypatch.setattr(Jobs, "enqueue", in_vain)
    with pytest.raises(StoreUnavailable, match=r"No space left on device.*options") as told:
        await (greet.enqueue("a") if sent == "one" else far.enqueue_many([greet.call("a"), greet.call("b")]))
    assert told.value.__cause__ is full
    assert told.value.id is not None


async def test_repeating_what_was_committed_all_the_same_makes_no_second_job(proxy, far, sql, soon):
    greet = far.task_named("greet")
    proxy.lose_answer = True
    with pytest.raises(StoreUnavailable) as told:
        await greet.enqueue("once")
    assert await count(sql) == 2

    proxy.refusing = False
    assert (await greet.options(id=told.value.id).enqueue("once")).existing
    assert await count(sql) == 2


@pytest.mark.parametrize("sent", ["one", "keyed", "bulk"])
async def test_silence_is_told_after_the_deadline_not_after_a_timer_of_the_connection(proxy, far, soon, sent):
    greet = far.task_named("greet")
    await far.enqueue_many([greet.call("second")])
    proxy.black_hole = True
    send = {
        "one": greet.enqueue,
        "keyed": greet.options(id=uuid4()).enqueue,
        "bulk": lambda: far.enqueue_many([greet.call()]),
    }[sent]
    async with asyncio.timeout(8):
        with pytest.raises(StoreUnavailable):
            await send()
    proxy.black_hole = False


async def test_who_joins_while_a_flush_hangs_does_not_wait_for_its_deadline_as_well(proxy, far, soon):
    greet = far.task_named("greet")
    proxy.black_hole = True
    first = asyncio.create_task(greet.enqueue())
    await asyncio.sleep(0)
    async with asyncio.timeout(8):
        answers = await asyncio.gather(first, greet.enqueue(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    proxy.black_hole = False


async def test_without_an_archive_a_lost_answer_cannot_be_repeated_and_says_so(proxy, sql):
    async with app_on(proxy.dsn, retention=0) as forgetful:
        greet = forgetful.task_named("greet")
        await greet.enqueue("first")
        proxy.lose_answer = True
        with pytest.raises(EnqueueUnknown, match="may or may not") as told:
            await greet.enqueue("unknown")
    assert told.value.id in {row[0] for row in await sql.fetch("SELECT id FROM aiopgq.jobs")}


async def test_without_an_archive_a_bulk_whose_answer_was_lost_says_so(proxy, sql):
    async with app_on(proxy.dsn, retention=0) as forgetful:
        greet = forgetful.task_named("greet")
        await forgetful.enqueue_many([greet.call("first")])
        proxy.lose_answer = True
        with pytest.raises(EnqueueUnknown):
            await forgetful.enqueue_many([greet.call("unknown")])
    assert await count(sql) == 2


async def test_without_an_archive_what_was_certainly_not_sent_is_still_repeated(proxy, sql):
    async with app_on(proxy.dsn, retention=0) as forgetful:
        proxy.refusing = True
        call = asyncio.create_task(forgetful.task_named("greet").enqueue("late"))
        await eventually(lambda: proxy.turned_away, what="the batcher tries in vain")
        proxy.refusing = False
        await call
    assert await names(sql) == ["late"]


async def test_whatever_a_connection_factory_raises_the_callers_are_told(dsn, soon):
    tries = 0

    async def connect():
        nonlocal tries
        tries += 1
        if tries > 1:
            raise RuntimeError("no token today")
        return await asyncpg.connect(dsn)

    async with app_on(None, connect=connect) as jobs, asyncio.timeout(8):
        greet = jobs.task_named("greet")
        answers = await asyncio.gather(*(greet.enqueue() for _ in range(3)), return_exceptions=True)
    assert [type(answer) in (RuntimeError, StoreUnavailable) for answer in answers] == [True] * 3


async def test_what_waiting_does_not_cure_is_told_to_all_callers_at_once(greet, sql):
    await sql.execute("ALTER TABLE aiopgq.jobs RENAME TO jobs_elsewhere")
    try:
        answers = await asyncio.gather(*(greet.enqueue() for _ in range(5)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [Undefined] * 5
    finally:
        await sql.execute("ALTER TABLE aiopgq.jobs_elsewhere RENAME TO jobs")
    await greet.enqueue("again")
    assert await names(sql) == ["again"]


# Many at once.


async def test_a_bulk_is_one_transaction_and_its_handles_come_in_order(jobs, greet, sql):
    calls = [greet.call(str(number)) for number in range(200)]
    handles = await jobs.enqueue_many(calls)
    assert [job.id for job in handles] == [
        row[0] for row in await sql.fetch("SELECT id FROM aiopgq.jobs ORDER BY place")
    ]
    assert await names(sql) == [str(number) for number in range(200)]
    assert await transactions(sql) == 1
    assert not any(job.existing for job in handles)


async def test_a_bulk_is_inserted_whole_or_not_at_all(jobs, greet, sql):
    calls = [greet.call(str(number)) for number in range(20)]
    calls[11].job.args = "{"
    with pytest.raises(RowRefused, match="Nothing of it was written"):
        await jobs.enqueue_many(calls)
    assert await count(sql) == 0


async def test_a_bulk_takes_calls_of_several_tasks_with_options_of_their_own(jobs, greet, sql):
    known = uuid4()
    fail = jobs.task_named("fail")
    handles = await jobs.enqueue_many(
        [greet.call("now"), greet.options(delay=60, queue="later").call("later"), fail.options(id=known).call()]
    )
    assert handles[2].id == known
    rows = await sql.fetch("SELECT task, queue, place IS NULL, max_attempts FROM aiopgq.jobs ORDER BY queue, task")
    assert [tuple(row) for row in rows] == [
        ("fail", "default", False, 1),
        ("greet", "default", False, 12),
        ("greet", "later", True, 12),
    ]


async def test_what_jobs_share_makes_the_same_rows_as_when_it_is_said_for_each(sql):
    rows = {}
    for queue, copies in (("said once", 1), ("said for each", 3)):
        await sql.execute(
            "SELECT aiopgq.enqueue_jobs($1, $2, $3, $4, $5, NULL, NULL, $6, NULL, NULL)",
            [uuid4() for _ in range(3)],
            [queue] * copies,
            ["t"] * copies,
            [f'{{"n":{n}}}' for n in range(3)],
            [7] * copies,
            [5] * copies,
        )
        rows[queue] = await sql.fetch(
            """SELECT to_jsonb(j) - '{id,queue,place,run_at,created_at}'::text[], run_at = created_at
            FROM aiopgq.jobs j WHERE queue = $1 ORDER BY place""",
            queue,
        )

    assert len(rows["said once"]) == 3
    assert rows["said once"] == rows["said for each"]
    assert all(ready for _, ready in rows["said once"])


async def test_an_empty_bulk_is_nothing(jobs, sql):
    assert await jobs.enqueue_many([]) == []
    assert await count(sql) == 0


# Ids.


async def test_an_id_is_a_uuid7_and_known_before_the_commit(greet, sql):
    began = time.time_ns() // 1_000_000
    async with sql.transaction():
        job = await greet.options(connection=sql).enqueue()
        assert job.id.version == 7
        assert job.id.variant == UUID(int=0x8 << 60).variant
        assert began <= job.id.int >> 80 <= time.time_ns() // 1_000_000


async def test_an_id_made_by_sql_is_a_uuid7_as_well(sql):
    began = time.time_ns() // 1_000_000
    ids = [await sql.fetchval("SELECT aiopgq.enqueue('t')") for _ in range(20)]

    assert {one.version for one in ids} == {7}
    assert {one.variant for one in ids} == {UUID(int=0x8 << 60).variant}
    moments = [one.int >> 80 for one in ids]
    # The server's clock may be another; here it is this machine's, rounded to the nearest millisecond.
    assert moments == sorted(moments)
    assert began <= moments[0] <= moments[-1] <= time.time_ns() // 1_000_000 + 1


async def test_an_explicit_id_is_enqueued_once(jobs, greet, sql):
    known = uuid4()
    first = await greet.options(id=known).enqueue("first")
    again = await greet.options(id=known).enqueue("other")
    many = await jobs.enqueue_many([greet.options(id=known).call("many"), greet.call("new")])
    assert [job.existing for job in (first, again, *many)] == [False, True, True, False]
    assert [job.id for job in (first, again, many[0])] == [known] * 3
    assert await names(sql) == ["first", "new"]


@pytest.mark.parametrize(("task", "status"), [("greet", "completed"), ("fail", "failed")])
async def test_an_explicit_id_is_known_after_its_job_has_ended(dsn, jobs, sql, task, status):
    keyed = jobs.task_named(task).options(id=uuid4())
    await keyed.enqueue()
    await work_all(dsn)
    again = await keyed.enqueue()
    assert again.existing
    assert (await again.info()).status == status
    assert await count(sql) == 1


async def test_of_two_that_enqueue_one_id_at_once_one_finds_it_existing(dsn, greet, sql):
    async with app_on(dsn) as other:
        theirs = other.task_named("greet")
        for _ in range(20):
            known = uuid4()
            handles = await asyncio.gather(*(task.options(id=known).enqueue() for task in (greet, theirs)))
            assert sorted(job.existing for job in handles) == [False, True]
    assert await count(sql) == 20


@pytest.mark.parametrize("commits", [True, False])
async def test_an_id_that_an_open_transaction_holds_is_decided_by_its_end(greet, sql, dsn, commits):
    known = uuid4()
    watcher = await asyncpg.connect(dsn)
    transaction = sql.transaction()
    await transaction.start()
    await greet.options(id=known, connection=sql).enqueue("theirs")
    mine = asyncio.create_task(greet.options(id=known).enqueue("mine"))
    await an_insert_waits(watcher)
    await (transaction.commit() if commits else transaction.rollback())
    assert (await mine).existing is commits
    assert await names(watcher) == ["theirs" if commits else "mine"]
    await watcher.close()


# Time and order.


async def test_jobs_stand_in_line_in_the_order_they_were_enqueued(jobs, greet, sql):
    for number in range(5):
        await greet.enqueue(str(number))
    await jobs.enqueue_many([greet.call(str(number)) for number in range(5, 10)])
    await asyncio.gather(*(greet.enqueue(str(number)) for number in range(10, 15)))
    assert await names(sql) == [str(number) for number in range(15)]


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)])
async def test_a_delay_counts_from_now_by_the_clock_of_postgresql(greet, sql, delay):
    await greet.options(delay=delay).enqueue()
    waits, place, fresh = await sql.fetchrow(
        "SELECT run_at - created_at, place, created_at BETWEEN now() - interval '1 minute' AND now() FROM aiopgq.jobs"
    )
    assert (waits, place, fresh) == (timedelta(minutes=1), None, True)


async def test_a_moment_in_the_past_is_ready_now(dsn, greet, sql):
    # The clock of this machine may be behind that of the database, or wrong by years.
    job = await greet.options(run_at=datetime(2001, 1, 1, tzinfo=UTC)).enqueue("late")
    assert await sql.fetchval("SELECT place FROM aiopgq.jobs") is not None
    await work_all(dsn)
    assert await job.result(timeout=10) == "hello late"


async def test_a_moment_keeps_its_instant_whatever_its_time_zone(greet, sql):
    moment = datetime(2400, 6, 1, 12, tzinfo=UTC)
    job = await greet.options(run_at=moment.astimezone()).enqueue()
    assert (await job.info()).run_at == moment
    assert await sql.fetchval("SELECT place FROM aiopgq.jobs") is None


async def test_a_later_moment_replaces_an_earlier_one(greet, sql):
    await greet.options(run_at=datetime(2400, 1, 1, tzinfo=UTC)).options(delay=0).enqueue()
    assert await sql.fetchval("SELECT run_at = created_at AND place IS NOT NULL FROM aiopgq.jobs")


async def test_in_a_long_transaction_time_does_not_stand_still(dsn, greet, sql):
    async with sql.transaction():
        await sql.execute("SELECT pg_sleep(0.3)")
        at_once = await greet.options(connection=sql).enqueue()
        delayed = await greet.options(connection=sql, delay=0.2).enqueue()
        late, waits = await sql.fetchrow("SELECT min(created_at - now()), max(run_at - created_at) FROM aiopgq.jobs")
        assert late >= timedelta(seconds=0.3)
        assert waits == timedelta(seconds=0.2)
    async with app_on(dsn) as near, near.worker():
        await asyncio.gather(at_once.result(timeout=30), delayed.result(timeout=30))
    for job in (at_once, delayed):
        info = await job.info()
        assert info.created_at <= info.run_at <= info.claimed_at <= info.finished_at


async def test_everything_works_without_prepared_statements(dsn):
    async with app_on(dsn, statement_cache_size=0) as jobs, jobs.worker():
        greet = jobs.task_named("greet")
        handles = [await greet.enqueue("one"), *await jobs.enqueue_many([greet.call("two")])]
        assert [await job.result(timeout=30) for job in handles] == ["hello one", "hello two"]
        assert (await greet.options(delay=60).enqueue()).existing is False
        assert await (await greet.options(delay=60).enqueue()).cancel() == "cancelled"
