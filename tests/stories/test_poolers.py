"""Behind PgBouncer in transaction mode: all works with listen_dsn, slower without it, and a wrong setting is told."""

import asyncio
import logging
import os
from collections import Counter
from contextlib import AsyncExitStack

import asyncpg
import pytest
from pooler import PgBouncer, find_programs
from support import eventually

from aiopgq import App, Backoff, current_job
from aiopgq.errors import ConfigError, JobCancelled

# What there must be of each kind, and how to get it.
NEEDED = {
    "before 1.21": "no pgbouncer before 1.21: apt-get install -y --no-install-recommends pgbouncer, of Debian 12",
    "since 1.21": "no pgbouncer since 1.21: tests/debian.sh builds one, AIOPGQ_TEST_PGBOUNCER may name one",
}
PROGRAMS = find_programs()
KINDS = {program.keeps_statements for program in PROGRAMS}
MISSING = [kind for kind, keeps in (("before 1.21", False), ("since 1.21", True)) if keeps not in KINDS]


@pytest.fixture(params=[*PROGRAMS, *MISSING], ids=str)
def program(request):
    """Each pgbouncer of this machine, one after the other; of a kind that is not there, the reason."""
    if isinstance(request.param, str):
        if not PROGRAMS and "pgbouncer" in os.environ.get("AIOPGQ_CI_REQUIRE", "").split():
            pytest.fail(NEEDED[request.param])
        pytest.skip(NEEDED[request.param])
    return request.param


@pytest.fixture
async def pooler(dsn, program):
    async with PgBouncer(dsn, program) as pooler:
        yield pooler


def make_app(runs, dsn, **settings):
    jobs = App(dsn, **settings)

    @jobs.task(name="double")
    async def double(number: int) -> int:
        runs[number] += 1
        return 2 * number

    return jobs, double


async def test_five_hundred_jobs_run_once_through_a_pooler(dsn, program, pooler, caplog):
    caplog.set_level(logging.WARNING, "aiopgq")
    runs = Counter()
    jobs, double = make_app(runs, pooler.dsn, listen_dsn=dsn, **program.settings)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(jobs)
        workers = [await stack.enter_async_context(jobs.worker(poll_interval=600)) for _ in range(3)]
        await eventually(lambda: all(one.health().listening for one in workers), what="the workers listen")
        singly = await asyncio.gather(*(double.enqueue(number) for number in range(250)))
        delayed = await asyncio.gather(*(double.options(delay=0.5).enqueue(number) for number in range(250, 300)))
        together = await jobs.enqueue_many([double.call(number) for number in range(300, 500)])
        unwanted = await double.options(delay=600).enqueue(-1)
        assert await unwanted.cancel() == "cancelled"

        results = await asyncio.gather(*(job.result(60) for job in (*singly, *delayed, *together)))
        with pytest.raises(JobCancelled):
            await unwanted.result(10)
        own = await stack.enter_async_context(Connected(pooler.dsn, program.settings))
        async with own.transaction():
            mine = await double.options(connection=own).enqueue(500)
        assert await mine.result(30) == 1000

    assert results == [2 * number for number in range(500)]
    assert runs == Counter(range(501))
    assert [record.getMessage() for record in caplog.records] == []


class Connected:
    """A connection of the caller's, as he must make it behind this pooler."""

    def __init__(self, dsn, settings):
        self._dsn = dsn
        self._settings = settings

    async def __aenter__(self):
        self._connection = await asyncpg.connect(self._dsn, **self._settings)
        return self._connection

    async def __aexit__(self, *_):
        await self._connection.close()


async def test_a_running_job_is_cancelled_through_a_pooler(dsn, program, pooler):
    jobs = App(pooler.dsn, listen_dsn=dsn, **program.settings)
    started = asyncio.Event()

    @jobs.task
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with jobs, jobs.worker():
        job = await endless.enqueue()
        await asyncio.wait_for(started.wait(), 30)
        assert await job.cancel() == "requested"
        with pytest.raises(JobCancelled):
            await job.result(30)


async def test_listening_and_beating_go_around_the_pooler(dsn, program, pooler):
    jobs, double = make_app(Counter(), pooler.dsn, listen_dsn=dsn, **program.settings)

    async with jobs, jobs.worker() as worker, Connected(dsn, {}) as look:
        await (await double.enqueue(1)).result(30)
        await eventually(lambda: worker.health().listening, what="the worker listens")
        rows = await look.fetch(
            "SELECT DISTINCT application_name AS name FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name IN ('aiopgq listen', 'aiopgq pulse'))"
        )

    assert {row["name"] for row in rows} >= {"aiopgq listen", "aiopgq pulse"}


@pytest.mark.slow
async def test_without_listen_dsn_a_worker_says_so_once_and_looks_every_second(program, pooler, caplog):
    caplog.set_level(logging.WARNING, "aiopgq")
    jobs, double = make_app(Counter(), pooler.dsn, **program.settings)

    async with jobs, jobs.worker(poll_interval=600) as worker:
        await eventually(lambda: caplog.records, within=30, what="the worker says that it is deaf")
        assert not worker.health().listening
        # The next look of its own accord would be in ten minutes, were it not for the second.
        started = asyncio.get_running_loop().time()
        assert await (await double.enqueue(4)).result(30) == 8
        took = asyncio.get_running_loop().time() - started
        assert took < 5

    said = [record.getMessage() for record in caplog.records]
    # The worker's ear, and that of result().
    assert 1 <= len(said) <= 2
    assert all("through a pooler that delivers no notifications. Give listen_dsn" in one for one in said)


async def test_what_a_transactional_task_writes_commits_with_its_settlement_through_a_pooler(dsn, program, pooler):
    jobs = App(pooler.dsn, listen_dsn=dsn, **program.settings)

    @jobs.task(transactional=True, backoff=Backoff(base=0))
    async def write(fails: int) -> None:
        run = current_job()
        await run.connection.execute("INSERT INTO effects VALUES ($1, $2)", run.id, run.attempt)
        if run.attempt <= fails:
            raise ValueError

    async with Connected(dsn, {}) as look:
        await look.execute("CREATE TABLE effects (job uuid, attempt integer)")
        async with jobs, jobs.worker():
            made = await jobs.enqueue_many([write.call(number % 2) for number in range(40)])
            await asyncio.gather(*(job.result(30) for job in made))
        written = await look.fetch("SELECT job, attempt FROM effects")

    assert Counter(map(tuple, written)) == Counter((job.id, 1 + number % 2) for number, job in enumerate(made))


@pytest.mark.parametrize("start", ["worker", "producer"])
async def test_prepared_statements_that_the_pooler_loses_are_told_at_the_start(dsn, program, start):
    forgetful = "max_prepared_statements = 0" if program.keeps_statements else ""
    async with PgBouncer(dsn, program, more=forgetful) as pooler:
        jobs, double = make_app(Counter(), pooler.dsn, listen_dsn=dsn)

        async def produce():
            async with jobs:
                await double.enqueue(1)

        with pytest.raises(ConfigError, match=r"statement_cache_size: .*Set statement_cache_size=0"):
            await asyncio.wait_for(jobs.worker().run() if start == "worker" else produce(), 20)


async def test_a_schema_is_migrated_through_a_pooler(empty_dsn, program):
    async with PgBouncer(empty_dsn, program) as pooler:
        jobs, _ = make_app(Counter(), pooler.dsn, **program.settings)
        again, _ = make_app(Counter(), pooler.dsn)
        assert len(await jobs.migrate()) > 0
        assert await again.migrate() == ()
