"""Tests of tasks, for pytest; `transactional.py` is the program under test."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from transactional import Base, jobs, send_welcome, sign_up

from aiopgq.testing import enqueued, perform

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# region perform
async def test_a_user_is_welcomed_in_his_language() -> None:
    run = await perform(send_welcome, 42, locale="de")

    assert run.settlement == "completed"
    assert run.result == "welcome in de, user 42"


# endregion


# region fixtures
@pytest.fixture
async def session(aiopgq_dsn: str, aiopgq_schema: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncSession]:
    """A session on a PostgreSQL with a fresh schema; what it does not commit is rolled back."""
    monkeypatch.setenv("AIOPGQ_DSN", aiopgq_dsn)
    monkeypatch.setenv("AIOPGQ_SCHEMA", aiopgq_schema)
    engine = create_async_engine(
        aiopgq_dsn.replace("postgresql://", "postgresql+asyncpg://"),
        connect_args={"server_settings": {"search_path": aiopgq_schema}},
    )
    async with AsyncSession(engine) as session:
        await (await session.connection()).run_sync(Base.metadata.create_all)
        await session.commit()
        yield session
    await engine.dispose()


# endregion


# region enqueued
async def test_who_signs_up_will_be_welcomed(session: AsyncSession) -> None:
    user_id = await sign_up(session, "ada@example.org")

    [job] = await enqueued(send_welcome, connection=session)
    assert job.args == {"user_id": user_id}


# endregion


# region drain
async def test_a_committed_job_runs(session: AsyncSession) -> None:
    async with jobs:
        await sign_up(session, "bob@example.org")
        await session.commit()

        done = await jobs.drain()

    assert done.completed == 1


# endregion
