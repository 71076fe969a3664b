"""Unique jobs: a key has one unfinished job, whatever the transactions of its producers do."""

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
from proxy import Proxy
from support import eventually

from aiopgq import App, Cancel, Retry, Unique
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import Jobs
from aiopgq.errors import ArgumentError, ConfigError, UniqueKeyHeld

# The bound of a wait, short enough for a test; it is a setting of the function.
IMPATIENT = "ALTER FUNCTION aiopgq.enqueue_unique_jobs SET lock_timeout = '{}'"
ASLEEP = """
    SELECT pg_sequence_last_value(('aiopgq.sleepers_' || aiopgq.slot('default'))::regclass)
        > aiopgq.milliseconds(clock_timestamp())"""
SAID = "SELECT aiopgq.enqueue('sql', p_args => $1, p_unique_key => 'k', p_on_conflict => $2, p_delay => $3)"


def app_on(dsn, **settings):
    """An App with a task whose key is its arguments, and others."""
    jobs = App(dsn, **settings)
    jobs.ran = []
    jobs.go = asyncio.Event()

    @jobs.task(name="by_args", unique="args")
    async def by_args(number: int, text: str = "") -> str:
        jobs.ran.append((number, text))
        return "done"

    @jobs.task(name="newest", unique=Unique(lambda user, **_: f"user:{user}", on_conflict="replace"))
    async def newest(user: int, text: str) -> str:
        jobs.ran.append((user, text))
        return text

    @jobs.task(name="calm", unique=Unique("calm", on_conflict="debounce", max_delay=300))
    async def calm() -> None: ...

    @jobs.task(name="hourly", unique=Unique("args", period=3600))
    async def hourly(number: int, cancel: bool = False, fail: bool = False) -> str | Cancel:
        if fail:
            raise ValueError("no")
        return Cancel("why") if cancel else "done"

    @jobs.task(name="slow", unique="args")
    async def slow(number: int) -> None:
        jobs.ran.append(number)
        await jobs.go.wait()

    @jobs.task(name="again", unique="args", backoff=lambda _: 0)
    async def again(number: int) -> str | Retry:
        jobs.ran.append(number)
        return Retry(after=3600) if len(jobs.ran) == 1 else "done"

    @jobs.task(name="fail", unique="args", max_attempts=1)
    async def fail(number: int) -> None:
        raise ValueError("no")

    @jobs.task(name="plain")
    async def plain(number: int = 0) -> None: ...

    return jobs


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
async def jobs(dsn):
    async with app_on(dsn) as jobs:
        yield jobs


@pytest.fixture
async def other(dsn):
    """Another producer, in a transaction of his own."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "a slow import"})
    yield connection
    await connection.close()


@pytest.fixture
async def impatient(sql):
    await sql.execute(IMPATIENT.format("300ms"))
    yield
    await sql.execute(IMPATIENT.format("5s"))


async def count(sql):
    return await sql.fetchval("SELECT count(*) FROM aiopgq.jobs")


async def row(sql, job):
    found = await sql.fetchrow("SELECT * FROM aiopgq.jobs WHERE id = $1", job.id)
    return {**found, "args": json.loads(found["args"])}


async def a_producer_waits(sql):
    async def waits():
        return await sql.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

    await eventually(waits, what="a producer waits for the key")


# What a key is.


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (((1, "a"), {}), ((), {"text": "a", "number": 1}), True),
        (((1,), {}), ((1, ""), {}), False),
        (((1,), {}), ((2,), {}), False),
        (((1, "\u00e9"), {}), ((1, "e\u0301"), {}), False),
    ],
    ids=["by position or name", "a default or the same value passed", "another value", "composed and decomposed"],
)
async def test_arguments_are_the_same_if_they_are_stored_the_same(jobs, first, second, same):
    by_args = jobs.task_named("by_args")
    one = await by_args.enqueue(*first[0], **first[1])
    two = await by_args.enqueue(*second[0], **second[1])
    assert (one.existing, two.existing) == (False, same)
    assert (one.id == two.id) == same


@pytest.mark.parametrize(
    ("value", "twin", "same"),
    [(1, 1.0, False), (1, True, False), (1, "1", False), ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True)],
)
def test_numbers_are_what_they_are_written_as_and_objects_have_no_order(value, twin, same):
    def key(value):
        return Unique("args").of("task", key, json.dumps({"value": value}), (), {}).key

    assert (key(value) == key(twin)) == same


def test_a_key_function_is_given_the_parameters_by_name_with_their_defaults():
    def task(user: int, locale: str = "en", /, **rest: int) -> None: ...

    unique = Unique(lambda locale, user, extra=0, **_: f"{user} {locale} {extra}")

    assert unique.of("task", task, "{}", (1,), {}).key == "1 en 0"
    assert unique.of("task", task, "{}", (1, "de"), {"extra": 2}).key == "1 de 2"


@pytest.mark.parametrize("key", ["", None, 5, "x" * 1001, "nul \x00", "half \ud800"], ids=repr)
async def test_what_cannot_be_a_key_is_told_before_sql_is_sent(dsn, key):
    jobs = App(dsn)

    @jobs.task(unique=lambda: key)
    async def task() -> None: ...

    with pytest.raises(ArgumentError, match="unique"):
        task.call()
    if key is not None:
        with pytest.raises(ArgumentError, match="unique"):
            task.options(unique=key)


@pytest.mark.parametrize(
    "wrong",
    [{"on_conflict": "ignore"}, {"period": -1}, {"max_delay": 5}, {"on_conflict": "debounce", "max_delay": "x"}],
)
def test_a_unique_that_means_nothing_is_refused(wrong):
    with pytest.raises(ConfigError, match="unique"):
        Unique("args", **wrong)


async def test_two_tasks_with_the_same_key_do_not_meet(jobs, sql):
    one = await jobs.task_named("plain").options(unique="k").enqueue()
    two = await jobs.task_named("fail").options(unique="k").enqueue(1)
    assert (one.existing, two.existing) == (False, False)
    assert await count(sql) == 2


async def test_a_call_may_have_a_key_of_its_own_or_none(jobs, sql):
    newest = jobs.task_named("newest")
    one = await newest.options(unique="k").enqueue(1, "a")
    two = await newest.options(unique="k").enqueue(2, "b")
    assert (two.id, two.existing) == (one.id, True)
    # What is not given stays as the task says.
    assert (await row(sql, one))["args"] == {"user": 2, "text": "b"}
    free = await newest.options(unique=None).enqueue(2, "b")
    assert not free.existing
    assert (await row(sql, free))["unique_key"] is None


# Two transactions.


async def test_when_the_first_commits_the_second_gets_its_job(jobs, other, sql):
    by_args = jobs.task_named("by_args")
    async with other.transaction():
        first = await by_args.options(connection=other).enqueue(1)
        second = asyncio.create_task(by_args.enqueue(1))
        await a_producer_waits(sql)
    assert not first.existing
    assert ((await second).id, (await second).existing) == (first.id, True)
    assert await count(sql) == 1


async def test_when_the_first_rolls_back_the_second_makes_the_job(jobs, other, sql):
    by_args = jobs.task_named("by_args")
    transaction = other.transaction()
    await transaction.start()
    first = await by_args.options(connection=other).enqueue(1)
    second = asyncio.create_task(by_args.enqueue(1))
    await a_producer_waits(sql)
    await transaction.rollback()
    assert not (await second).existing
    assert (await second).id != first.id
    assert [r["id"] for r in await sql.fetch("SELECT id FROM aiopgq.jobs")] == [(await second).id]


async def test_when_the_first_hangs_the_second_is_told_who_it_is(jobs, other, sql, impatient):
    by_args = jobs.task_named("by_args")
    async with other.transaction():
        await by_args.options(connection=other).enqueue(1)
        begun = await sql.fetchval("SELECT xact_start FROM pg_stat_activity WHERE pid = $1", other.get_server_pid())
        with pytest.raises(UniqueKeyHeld, match="a slow import") as told:
            await by_args.enqueue(1)
    assert (told.value.task, told.value.pid) == ("by_args", other.get_server_pid())
    assert (told.value.application_name, told.value.since) == ("a slow import", begun)
    assert told.value.key.startswith("args:")
    assert (await by_args.enqueue(1)).existing


async def test_who_is_about_to_settle_the_job_is_told_as_well(jobs, other, sql, impatient):
    job = await jobs.task_named("by_args").enqueue(1)
    async with other.transaction():
        await other.execute("DELETE FROM aiopgq.jobs WHERE id = $1", job.id)
        with pytest.raises(UniqueKeyHeld) as told:
            await jobs.task_named("by_args").enqueue(1)
    assert told.value.pid == other.get_server_pid()


async def test_of_many_keys_written_at_once_the_writer_is_found_as_well(jobs, other, impatient):
    by_args = jobs.task_named("by_args")
    async with other.transaction():
        await jobs.enqueue_many([by_args.call(number) for number in range(100)], connection=other)
        marks = await other.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert marks == 1
        with pytest.raises(UniqueKeyHeld) as told:
            await by_args.enqueue(77)
    assert told.value.pid == other.get_server_pid()


async def test_a_transaction_that_waited_in_vain_can_go_on(dsn, jobs, other, sql, impatient):
    by_args, plain = jobs.task_named("by_args"), jobs.task_named("plain")
    mine = await asyncpg.connect(dsn)
    async with other.transaction(), mine.transaction():
        await by_args.options(connection=other).enqueue(1)
        with pytest.raises(UniqueKeyHeld):
            await jobs.enqueue_many([plain.call(5), by_args.call(0), by_args.call(1)], connection=mine)
        kept = await by_args.options(connection=mine).enqueue(2)
    await mine.close()
    # All or none of the batch.
    assert {r["args"] for r in await sql.fetch("SELECT args FROM aiopgq.jobs")} == {'{"number": 1}', '{"number": 2}'}
    assert (await kept.info()).args == {"number": 2}


async def test_a_wait_is_five_seconds_at_most(sql):
    settings = await sql.fetchval("SELECT proconfig FROM pg_proc WHERE proname = 'enqueue_unique_jobs'")
    assert "lock_timeout=5s" in settings


async def test_a_duplicate_leaves_the_transaction_and_its_settings_as_they_are(jobs, other, sql):
    by_args = jobs.task_named("by_args")
    first = await by_args.enqueue(1)
    async with other.transaction():
        await other.execute("SET LOCAL lock_timeout = '7s'")
        again = await by_args.options(connection=other).enqueue(1)
        assert await other.fetchval("SHOW lock_timeout") == "7s"
        await by_args.options(connection=other).enqueue(2)
    assert (again.id, again.existing) == (first.id, True)
    assert await count(sql) == 2


async def test_eight_producers_of_a_key_make_one_job(dsn, sql):
    apps = [app_on(dsn) for _ in range(8)]
    for app in apps:
        await app.__aenter__()
    try:
        for number in range(20):
            handles = await asyncio.gather(*(app.task_named("by_args").enqueue(number) for app in apps))
            assert len({job.id for job in handles}) == 1
            assert sorted(job.existing for job in handles) == [False] + [True] * 7
    finally:
        for app in apps:
            await app.__aexit__()
    assert await count(sql) == 20


async def test_whoever_meets_a_job_that_ends_gets_a_job_all_the_same(jobs, sql):
    """The job that had the key may be gone by the time one looks for it."""
    by_args = jobs.task_named("by_args")
    async with jobs.worker(concurrency=8, job_log=False):
        for _ in range(20):
            handles = await asyncio.gather(*(by_args.enqueue(number % 3) for number in range(50)))
            assert all(job.id for job in handles)
            created = {job.id for job in handles if not job.existing}
            assert {job.id for job in handles if job.existing} - created <= {
                r["id"] for r in await sql.fetch("SELECT id FROM aiopgq.all_jobs")
            }
    await jobs.drain()
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.archive") == len(jobs.ran)


async def test_batches_in_any_order_never_wait_in_a_circle(dsn, jobs, sql):
    """Producers replace what workers run and settle."""
    apps = [app_on(dsn) for _ in range(4)]
    for app in apps:
        await app.__aenter__()
    before = await sql.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")

    async def produce(app, seed):
        dice = random.Random(seed)
        newest = app.task_named("newest")
        for turn in range(15):
            calls = [newest.call(user, str(turn)) for user in dice.sample(range(100), 100)]
            assert len(await app.enqueue_many(calls)) == 100

    try:
        async with jobs.worker(concurrency=20, job_log=False):
            await asyncio.gather(*(produce(app, seed) for seed, app in enumerate(apps)))
        await jobs.drain()
    finally:
        for app in apps:
            await app.__aexit__()
    await sql.execute("SELECT pg_stat_force_next_flush()")
    assert await sql.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == before
    assert await count(sql) == 0
    assert {user for user, _ in jobs.ran} == set(range(100))
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.archive") == len(jobs.ran)


async def test_a_lost_answer_makes_no_second_job_and_says_it_is_new(dsn, sql):
    async with Proxy(dsn) as proxy, app_on(proxy.dsn) as far:
        by_args = far.task_named("by_args")
        await by_args.enqueue(0)
        proxy.lose_answer = True
        call = asyncio.create_task(by_args.enqueue(1))
        await eventually(lambda: proxy.refusing, what="the answer is lost")
        proxy.refusing = False
        assert not (await call).existing
    assert await count(sql) == 2


# On conflict.


async def test_replace_gives_a_pending_job_new_arguments_and_a_new_moment(jobs, sql):
    newest = jobs.task_named("newest")
    one = await newest.options(delay=600, priority=30).enqueue(1, "old")
    two = await newest.options(priority=150, headers={"a": "b"}).enqueue(1, "new")
    assert (two.id, two.existing) == (one.id, True)
    found = await row(sql, one)
    assert (found["args"], found["priority"], found["headers"]) == ({"user": 1, "text": "new"}, 150, '{"a": "b"}')
    assert found["place"] is not None
    await jobs.drain()
    assert jobs.ran == [(1, "new")]
    assert await one.result() == "new"


async def test_a_job_that_is_replaced_while_it_waits_for_its_last_attempt_has_all_of_them_again(jobs, sql):
    newest = jobs.task_named("newest")
    job = await newest.options(delay=600, max_attempts=3).enqueue(1, "old")
    await sql.execute("UPDATE aiopgq.jobs SET attempts = 2 WHERE id = $1", job.id)
    await newest.options(delay=600).enqueue(1, "new")
    found = await row(sql, job)
    assert (found["attempts"], found["max_attempts"]) == (0, 3)


async def test_a_job_that_is_postponed_has_spent_the_attempts_it_had(jobs, sql):
    newest = jobs.task_named("newest").options(unique=Unique(lambda user, **_: str(user), on_conflict="debounce"))
    job = await newest.options(delay=10).enqueue(1, "old")
    await sql.execute("UPDATE aiopgq.jobs SET attempts = 2 WHERE id = $1", job.id)
    await newest.options(delay=600).enqueue(1, "new")
    assert (await row(sql, job))["attempts"] == 2


async def test_a_replaced_job_keeps_its_place_in_line(jobs):
    newest = jobs.task_named("newest")
    for user, text in [(1, "old"), (2, "other"), (1, "new")]:
        await newest.enqueue(user, text)
    await jobs.drain(concurrency=1)
    assert jobs.ran == [(1, "new"), (2, "other")]


async def test_a_job_that_is_replaced_for_later_leaves_the_line(jobs, sql):
    newest = jobs.task_named("newest")
    job = await newest.enqueue(1, "now")
    await newest.options(delay=600).enqueue(1, "later")
    assert (await row(sql, job))["place"] is None
    assert (await jobs.drain()).completed == 0


async def test_a_sleeping_worker_wakes_for_a_job_that_is_replaced_for_now(jobs, sql):
    async def a_worker_sleeps():
        return await sql.fetchval(ASLEEP)

    newest = jobs.task_named("newest")
    job = await newest.options(delay=600).enqueue(1, "later")
    async with jobs.worker(poll_interval=60):
        await eventually(a_worker_sleeps, what="the worker sleeps")
        await newest.enqueue(1, "now")
        assert await job.result(timeout=20) == "now"


@pytest.mark.parametrize("on_conflict", ["skip", "replace", "debounce"])
async def test_a_running_job_is_left_as_it_is(jobs, sql, on_conflict):
    slow = jobs.task_named("slow")
    async with jobs.worker():
        job = await slow.enqueue(1)
        await eventually(lambda: jobs.ran, what="the job runs")
        unique = Unique("args", on_conflict=on_conflict)
        again = await slow.options(unique=unique, delay=60, priority=1).enqueue(1)
        assert (again.id, again.existing) == (job.id, True)
        found = await row(sql, job)
        assert (found["priority"], found["run_at"] < datetime.now(UTC) + timedelta(seconds=30)) == (100, True)
        jobs.go.set()
        await job.result(timeout=10)
    assert jobs.ran == [1]


async def test_debounce_postpones_a_pending_job_up_to_its_longest_delay(jobs, sql):
    calm = jobs.task_named("calm")
    job = await calm.options(delay=60).enqueue()
    first = (await row(sql, job))["run_at"]
    assert (await calm.options(delay=120).enqueue()).id == job.id
    second = await row(sql, job)
    assert timedelta(seconds=60) < second["run_at"] - first < timedelta(seconds=90)
    await calm.options(delay=3600).enqueue()
    last = await row(sql, job)
    assert last["run_at"] == last["created_at"] + timedelta(seconds=300)
    # Back, never forward.
    await calm.options(delay=1).enqueue()
    assert (await row(sql, job))["run_at"] == last["run_at"]


async def test_debounce_takes_a_ready_job_out_of_the_line(jobs, sql):
    calm = jobs.task_named("calm")
    job = await calm.options(delay=0).enqueue()
    assert (await row(sql, job))["place"] is not None
    await calm.options(delay=60).enqueue()
    assert (await row(sql, job))["place"] is None


async def test_debounce_without_a_delay_is_refused_before_sql_is_sent(jobs, sql):
    with pytest.raises(ArgumentError, match=r"delay"):
        await jobs.task_named("calm").enqueue()
    assert await count(sql) == 0


# A period.


@pytest.mark.parametrize("retention", [0, 600])
async def test_a_key_is_held_for_its_period_after_completion(dsn, sql, retention):
    async with app_on(dsn, retention=retention) as jobs:
        hourly = jobs.task_named("hourly")
        job = await hourly.enqueue(1)
        await jobs.drain()
        again = await hourly.enqueue(1)
        assert (again.id, again.existing) == (job.id, True)
        assert not (await hourly.enqueue(2)).existing
        await sql.execute("UPDATE aiopgq.unique_holds SET until = clock_timestamp()")
        assert not (await hourly.enqueue(1)).existing


@pytest.mark.parametrize("end", ["cancel", "fail"])
async def test_only_completion_holds_a_key(jobs, sql, end):
    task = jobs.task_named("hourly").options(max_attempts=1)
    job = await task.enqueue(1, **{end: True})
    await jobs.drain(raises=False)
    assert (await job.info()).status in ("cancelled", "failed")
    assert not (await task.enqueue(1, **{end: True})).existing


async def test_a_job_that_is_completed_while_one_waits_for_its_key_holds_it(dsn, jobs, other, sql):
    hourly = jobs.task_named("hourly")
    job = await hourly.enqueue(1)
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    [claimed] = await Jobs(line).claim(uuid4(), uuid4(), 1, ["hourly"], {"default": 1}, None)
    await line.close()
    async with other.transaction():
        await other.execute("SELECT aiopgq.complete_jobs($1, $2, ARRAY[NULL], true)", [claimed.id], [claimed.claim_id])
        again = asyncio.create_task(hourly.enqueue(1))
        await a_producer_waits(sql)
    assert ((await again).id, (await again).existing) == (job.id, True)
    assert await count(sql) == 0


async def test_upkeep_forgets_keys_whose_period_is_over_and_no_others(jobs, sql):
    hourly = jobs.task_named("hourly")
    handles = await jobs.enqueue_many([hourly.call(number) for number in range(5)])
    await jobs.drain()
    over = [job.id for job in handles[:2]]
    await sql.execute("UPDATE aiopgq.unique_holds SET until = clock_timestamp() WHERE id = ANY ($1)", over)

    async def left():
        return await sql.fetchval("SELECT count(*) FROM aiopgq.unique_holds") == 3

    async with jobs.worker():
        await eventually(left, what="two of five holds are forgotten")


# The life of a keyed job.


async def test_a_job_keeps_its_key_while_it_waits_for_its_next_attempt(jobs, sql):
    again = jobs.task_named("again")
    job = await again.enqueue(1)
    await jobs.drain()
    assert (await again.enqueue(1)).id == job.id
    await sql.execute("UPDATE aiopgq.jobs SET run_at = clock_timestamp()")
    await jobs.drain()
    assert await job.result(timeout=10) == "done"
    assert not (await again.enqueue(1)).existing


async def test_a_dead_letter_has_no_key_until_it_is_replayed(jobs, sql):
    fail, plain = jobs.task_named("fail"), jobs.task_named("plain")
    dead = await jobs.enqueue_many([fail.call(1), fail.call(2), plain.options(max_attempts=1).call(3)])
    await sql.execute("UPDATE aiopgq.jobs SET task = 'fail' WHERE task = 'plain'")
    await jobs.drain(raises=False)
    newer = await fail.enqueue(1)
    assert not newer.existing

    replayed = await jobs.inspector.replay([job.id for job in dead])

    # The newer job has the key of one; the others of the batch are replayed.
    assert replayed == (2, {dead[0].id: newer.id})
    assert (await dead[0].info()).status == "failed"
    assert (await fail.enqueue(2)).id == dead[1].id
    await newer.cancel()
    assert await jobs.inspector.replay([dead[0].id]) == (1, {})
    assert (await row(sql, dead[0]))["unique_key"] is not None


async def test_of_two_dead_letters_with_one_key_the_first_is_replayed(jobs):
    fail = jobs.task_named("fail")
    dead = []
    for _ in range(2):
        dead.append(await fail.enqueue(1))
        await jobs.drain(raises=False)
    assert await jobs.inspector.replay([job.id for job in reversed(dead)]) == (1, {dead[1].id: dead[0].id})


# Bulk.


async def test_in_a_batch_each_key_makes_one_job_beside_those_without(jobs, sql):
    newest, plain = jobs.task_named("newest"), jobs.task_named("plain")
    old = await newest.options(delay=60).enqueue(3, "old")
    calls = [newest.call(9, "a"), plain.call(1), newest.call(3, "b"), newest.call(9, "c"), plain.call(2)]
    handles = await jobs.enqueue_many(calls)
    assert [job.existing for job in handles] == [False, False, True, True, False]
    assert (handles[2].id, handles[3].id) == (old.id, handles[0].id)
    await jobs.drain(concurrency=1)
    assert jobs.ran == [(9, "c"), (3, "b")]


async def test_a_batch_of_the_caller_is_his_to_roll_back(jobs, other, sql):
    by_args = jobs.task_named("by_args")
    kept = await by_args.enqueue(1)
    transaction = other.transaction()
    await transaction.start()
    handles = await jobs.enqueue_many([by_args.call(number) for number in (2, 1, 2)], connection=other)
    assert [job.existing for job in handles] == [False, True, True]
    await transaction.rollback()
    assert [r["id"] for r in await sql.fetch("SELECT id FROM aiopgq.jobs")] == [kept.id]


async def test_a_key_and_an_id_go_together(jobs, sql):
    by_args = jobs.task_named("by_args")
    job_id = uuid4()
    one = await by_args.options(id=job_id).enqueue(1)
    await jobs.drain()
    two = await by_args.options(id=job_id).enqueue(1)
    assert (one.existing, two.existing, two.id) == (False, True, job_id)
    assert await count(sql) == 0


# Through SQL.


async def test_sql_enqueues_under_a_key_by_the_same_rules(sql):
    first = await sql.fetchval(SAID, '{"n": 1}', "skip", None)
    assert await sql.fetchval(SAID, '{"n": 2}', "skip", None) == first
    assert await sql.fetchval("SELECT args->>'n' FROM aiopgq.jobs") == "1"
    assert await sql.fetchval(SAID, '{"n": 3}', "replace", None) == first
    assert await sql.fetchval("SELECT args->>'n' FROM aiopgq.jobs") == "3"
    assert await sql.fetchval(SAID, '{"n": 4}', "debounce", timedelta(minutes=1)) == first
    assert await sql.fetchrow("SELECT args->>'n', place FROM aiopgq.jobs") == ("3", None)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="debounce"):
        await sql.fetchval(SAID, "{}", "ignore", None)
    assert await sql.fetchval("SELECT aiopgq.enqueue('sql')") != first


async def test_sql_and_python_share_their_keys(jobs, sql):
    job = await jobs.task_named("plain").options(unique="k").enqueue()
    assert await sql.fetchval("SELECT aiopgq.enqueue('plain', p_unique_key => 'k')") == job.id


async def test_sql_is_told_who_has_written_the_key(jobs, other, sql, impatient):
    async with other.transaction():
        await jobs.task_named("plain").options(unique="k", connection=other).enqueue()
        with pytest.raises(asyncpg.LockNotAvailableError, match="did not end") as told:
            await sql.fetchval("SELECT aiopgq.enqueue('plain', p_unique_key => 'k')")
    assert f"pid {other.get_server_pid()}" in told.value.detail


async def test_a_period_without_a_key_or_beyond_reason_does_no_harm(jobs, sql):
    with pytest.raises(asyncpg.CheckViolationError, match="hundred_years"):
        await sql.execute("SELECT aiopgq.enqueue('plain', p_unique_key => 'k', p_unique_for => '9999 years')")
    job = await sql.fetchval("SELECT aiopgq.enqueue('plain')")
    await sql.execute("UPDATE aiopgq.jobs SET unique_for = '1 hour' WHERE id = $1", job)
    assert (await jobs.drain()).completed == 1
