"""A worker inside a web app: it starts with the app or fails it, and ends with it, in time."""

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest
from aiohttp import web
from faces.serving import UVICORN, left_in, served, starting
from support import eventually

from aiopgq import App
from aiopgq.errors import AppNotOpen, SchemaMissing

HERE = Path(__file__).parent
APP = (*UVICORN, "stubborn_app:app")
SIGNALS = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]


@pytest.fixture
def jobs(dsn):
    return App(dsn)


def handlers():
    return {number: signal.getsignal(number) for number in SIGNALS}


async def nothing_of_ours_in(dsn):
    return (await left_in(dsn))[2] == 0


async def test_a_worker_inside_an_app_leaves_the_signals_alone(jobs):
    @jobs.task
    async def answer() -> int:
        return 42

    before = handlers()
    async with jobs.worker().lifespan(None):
        job = await answer.enqueue()
        assert await job.result(10) == 42
        assert handlers() == before

    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_server_and_worker_and_no_job_is_lost(dsn, number):
    async with served(*APP, cwd=HERE, DATABASE_URL=dsn) as (server, client):
        for name in ("quick", "patient"):
            await client.post(f"/jobs/{name}")

        async def both():
            return (await client.get("/began")).json() == ["patient", "quick"]

        await eventually(both, what="both jobs have begun")
        code, seconds = await server.end(number)

    assert "Application shutdown complete" in server.said
    assert "Traceback" not in server.said
    assert "Task was destroyed" not in server.said
    assert code in (0, -number), server.said
    assert seconds < 12
    await eventually(lambda: nothing_of_ours_in(dsn), what="the server's connections are gone")
    # The quick one was let finish, the patient one given back after the grace of 2 s; its attempt is not spent.
    assert await left_in(dsn) == ([("pending", 0)], 0, 0)


@pytest.mark.parametrize("name", ["stubborn", "thread"])
async def test_a_job_that_ignores_its_cancellation_does_not_keep_the_server(dsn, name):
    async with served(*APP, cwd=HERE, DATABASE_URL=dsn) as (server, client):
        await client.post(f"/jobs/{name}")

        async def begun():
            return (await client.get("/began")).json() == [name]

        await eventually(begun, what="the job has begun")
        _, seconds = await server.end(signal.SIGTERM)

    assert "left behind: 1 job whose handlers ignored their cancellation, 0 outcomes" in server.said
    assert "Application shutdown complete" in server.said
    # A grace of 2 s, 2 s for the stubborn, and room for a machine with other work; the job would take 60.
    assert seconds < 12


async def test_a_worker_that_cannot_start_fails_the_start_of_the_server(empty_dsn):
    async with starting(*APP, cwd=HERE, DATABASE_URL=empty_dsn) as server:
        code = await server.ended()

    assert code == 3
    assert "Schema 'aiopgq' holds no aiopgq tables. Run `python -m aiopgq migrate`" in server.said
    assert "Uvicorn running" not in server.said


async def test_a_database_that_is_down_fails_the_start_of_the_server():
    async with starting(*APP, cwd=HERE, DATABASE_URL="postgresql://nobody@127.0.0.1:1/nowhere") as server:
        code = await server.ended()

    assert code == 3
    assert "PostgreSQL cannot be reached" in server.said


async def test_a_worker_that_cannot_start_fails_the_start_of_an_aiohttp_app(empty_dsn):
    jobs = App(empty_dsn)

    @jobs.task
    async def nothing() -> None: ...

    app = web.Application()
    app.cleanup_ctx.append(jobs.worker().cleanup_ctx)
    runner = web.AppRunner(app)

    with pytest.raises(SchemaMissing):
        await runner.setup()
    await runner.cleanup()


async def test_an_app_may_be_started_again_with_the_same_worker(jobs):
    @jobs.task
    async def answer() -> int:
        return 42

    worker = jobs.worker()
    for _ in range(2):
        async with worker.lifespan(None):
            assert await (await answer.enqueue()).result(10) == 42


async def test_a_lifespan_without_a_worker_enqueues_only(jobs, dsn):
    @jobs.task
    async def answer() -> int:
        return 42

    async with jobs.lifespan(None):
        job = await answer.enqueue()
        assert (await job.info()).status == "pending"
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT count(*) FROM aiopgq.workers") == 0
        await connection.close()

    with pytest.raises(AppNotOpen):
        await answer.enqueue()


async def test_a_cleanup_context_without_a_worker_enqueues_only(jobs):
    @jobs.task
    async def answer() -> int:
        return 42

    app = web.Application()
    app.cleanup_ctx.append(jobs.cleanup_ctx)
    runner = web.AppRunner(app)
    await runner.setup()
    job = await answer.enqueue()
    assert (await job.info()).status == "pending"
    await runner.cleanup()

    with pytest.raises(AppNotOpen):
        await answer.enqueue()


async def test_a_lifespan_may_be_left_in_another_task_than_it_was_entered_in(jobs):
    @jobs.task
    async def answer() -> int:
        return 42

    context = jobs.worker().cleanup_ctx(None)
    await asyncio.create_task(anext(context))
    assert await (await answer.enqueue()).result(10) == 42
    with pytest.raises(StopAsyncIteration):
        await asyncio.create_task(anext(context))

    with pytest.raises(AppNotOpen):
        await answer.enqueue()
