"""The PostgreSQL that is measured: one given, or an embedded one; and a fresh, migrated database for each run."""

import fcntl
import os
import platform
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import anyio.to_thread
import asyncpg

from aiopgq import App
from aiopgq.embedded import EmbeddedServer
from aiopgq.embedded.supervisor import SUPERVISOR

__all__ = ["Server", "running_server"]

_SHOWN: Final = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
)


class Server:
    """A server on which databases may be made.

    Args:
        dsn: Its address, as a role that may create databases.
        control: A connection to the database of that address, which no benchmark touches.
    """

    def __init__(self, dsn: str, control: asyncpg.Connection) -> None:
        self._dsn = dsn
        self.control = control
        self._template: str | None = None

    async def description(self) -> str:
        """Say what is measured, in two lines."""
        version = await self.control.fetchval("SHOW server_version")
        settings = [f"{name} {await self.control.fetchval(f'SHOW {name}')}" for name in _SHOWN]

        return (
            f"PostgreSQL {version}, Python {platform.python_version()}, uvloop, {os.cpu_count()} CPUs\n"
            f"{', '.join(settings)}"
        )

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Lend a database that nobody has used; it is dropped afterwards."""
        if self._template is None:
            self._template = await self._create("template0")
            await App(self._address(self._template)).migrate()
        name = await self._create(self._template)
        try:
            yield self._address(name)
        finally:
            await self._drop(name)

    @asynccontextmanager
    async def empty_database(self) -> AsyncIterator[str]:
        """Lend a database with nothing in it; it is dropped afterwards."""
        name = await self._create("template0")
        try:
            yield self._address(name)
        finally:
            await self._drop(name)

    async def close(self) -> None:
        """Leave nothing behind."""
        if self._template is not None:
            await self._drop(self._template)
        await self.control.close()

    def _address(self, database: str) -> str:
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{database}"))

    async def _create(self, template: str) -> str:
        name = f"aiopgq_bench_{secrets.token_hex(6)}"
        await self.control.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    async def _drop(self, name: str) -> None:
        await self.control.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@asynccontextmanager
async def running_server(dsn: str | None) -> AsyncIterator[Server]:
    """Use the server given, that of AIOPGQ_BENCH_DSN, or start one in a temporary folder."""
    given = dsn or os.environ.get("AIOPGQ_BENCH_DSN")
    if given:
        async with _connected(given) as server:
            yield server
        return

    with tempfile.TemporaryDirectory(prefix="aiopgq-bench-", ignore_cleanup_errors=True) as folder:
        embedded = await anyio.to_thread.run_sync(EmbeddedServer.start, Path(folder) / "server")
        try:
            async with _connected(embedded.dsn) as server:
                yield server
        finally:
            embedded.close()
            await anyio.to_thread.run_sync(_wait_for_end, embedded.folder)


def _wait_for_end(folder: Path) -> None:
    """Wait until the server has left its folder, so that the folder can go."""
    with (folder / SUPERVISOR).open("rb") as promise:
        # Whoever minds the server holds this lock until it has stopped.
        fcntl.flock(promise, fcntl.LOCK_EX)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Server]:
    server = Server(dsn, await asyncpg.connect(dsn))
    try:
        yield server
    finally:
        await server.close()
