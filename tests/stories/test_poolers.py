"""Behind PgBouncer in transaction mode: all works with listen_dsn, slower without it, and a wrong setting is told."""

import asyncio
import logging
import os
import subprocess
from collections import Counter
from contextlib import AsyncExitStack

import asyncpg
import pytest
from pooler import PgBouncer, find_pgbouncer
from support import eventually

from aiopgq import App
from aiopgq.errors import ConfigError, JobCancelled

NEEDED = "no pgbouncer: apt-get install -y --no-install-recommends pgbouncer"


@pytest.fixture
async def pooler(dsn):
    need_pgbouncer()
    async with PgBouncer(dsn) as pooler:
        yield pooler


def need_pgbouncer():
    if find_pgbouncer() is None:
        if "pgbouncer" in os.environ.get("AIOPGQ_CI_REQUIRE", "").split():
            pytest.fail(NEEDED)
        pytest.skip(NEEDED)


def loses_statements():
    """Whether this pgbouncer is older than 1.21, which learnt to keep them."""
    said = subprocess.run([find_pgbouncer(), "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.split()[1].split(".")[:2]
    return (int(major), int(minor)) < (1, 21)


def make_app(runs, dsn, **settings):
    jobs = App(dsn, **settings)

    @jobs.task(name="double")
    async def double(number: int) -> int:
        runs[number] += 1
        return 2 * number

    return jobs, double


async def test_five_hundred_jobs_run_once_through_a_pooler(dsn, pooler, caplog):
    caplog.set_level(logging.WARNING, "aiopgq")
    runs = Counter()
    jobs, double = make_app(runs, pooler.dsn, listen_dsn=dsn, statement_cache_size=0)
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
        own = await stack.enter_async_context(Connected(pooler.dsn))
        async with own.transaction():
            mine = await double.options(connection=own).enqueue(500)
        assert await mine.result(30) == 1000

    assert results == [2 * number for number in range(500)]
    assert runs == Counter(range(501))
    assert [record.getMessage() for record in caplog.records] == []


class Connected:
    """A connection of the caller's, as he must make it behind this pooler."""

    def __init__(self, dsn):
        self._dsn = dsn

    async def __aenter__(self):
        self._connection = await asyncpg.connect(self._dsn, statement_cache_size=0)
        return self._connection

    async def __aexit__(self, *_):
        await self._connection.close()


async def test_a_running_job_is_cancelled_through_a_pooler(dsn, pooler):
    jobs = App(pooler.dsn, listen_dsn=dsn, statement_cache_size=0)
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


async def test_listening_and_beating_go_around_the_pooler(dsn, pooler):
    jobs, double = make_app(Counter(), pooler.dsn, listen_dsn=dsn, statement_cache_size=0)

    async with jobs, jobs.worker() as worker, Connected(dsn) as look:
        await (await double.enqueue(1)).result(30)
        await eventually(lambda: worker.health().listening, what="the worker listens")
        rows = await look.fetch(
            "SELECT DISTINCT application_name AS name FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name IN ('aiopgq listen', 'aiopgq pulse'))"
        )

    assert {row["name"] for row in rows} >= {"aiopgq listen", "aiopgq pulse"}


async def test_without_listen_dsn_a_worker_says_so_once_and_looks_every_second(pooler, caplog):
    caplog.set_level(logging.WARNING, "aiopgq")
    jobs, double = make_app(Counter(), pooler.dsn, statement_cache_size=0)

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


@pytest.mark.parametrize("start", ["worker", "producer"])
async def test_prepared_statements_that_the_pooler_loses_are_told_at_the_start(dsn, pooler, start):
    if not loses_statements():
        pytest.skip("this pgbouncer keeps prepared statements")
    jobs, double = make_app(Counter(), pooler.dsn, listen_dsn=dsn)

    async def produce():
        async with jobs:
            await double.enqueue(1)

    with pytest.raises(ConfigError, match=r"statement_cache_size: .*Set statement_cache_size=0"):
        await asyncio.wait_for(jobs.worker().run() if start == "worker" else produce(), 20)


async def test_a_schema_is_migrated_through_a_pooler(empty_dsn, databases):
    need_pgbouncer()
    async with PgBouncer(empty_dsn) as pooler:
        jobs, _ = make_app(Counter(), pooler.dsn, statement_cache_size=0)
        again, _ = make_app(Counter(), pooler.dsn)
        assert len(await jobs.migrate()) > 0
        assert await again.migrate() == ()
