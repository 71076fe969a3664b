"""What an open App holds: its connections, the batcher, and those who wait for results."""

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio.to_thread

from aiopgq._flow.enqueue import DEADLINE, Attempt, Batcher, insert, pour
from aiopgq._flow.listen import keep_listening
from aiopgq._flow.results import Results
from aiopgq._flow.watch import Watch
from aiopgq._store.connection import ConnectFactory, ConnectSettings, Line, Lines
from aiopgq._store.dsn import EMBEDDED, find_dsn, masked, normal
from aiopgq._store.jobs import Jobs
from aiopgq._store.pooler import check_pooler
from aiopgq._store.schema import check_schema
from aiopgq._store.trouble import StatementLost
from aiopgq._words.job import NewJob
from aiopgq._words.unique import Standing
from aiopgq.embedded import EmbeddedServer
from aiopgq.errors import AppNotOpen, ConfigError, WrongLoop

__all__ = ["DatabaseSettings", "Opened", "Openings"]

log = logging.getLogger("aiopgq")

# Looking, cancelling, enqueue_many, keyed enqueues; the batcher has a line of its own.
_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Where the database is, as far as the constructor says; the environment fills the gaps at opening.

    Attributes:
        dsn: A URL, `embedded:FOLDER`, or None.
        listen_dsn: Where to LISTEN, None for the same.
        schema: The schema of the tables.
        connect: Makes a connection instead of a DSN.
        statement_cache_size: Prepared statements kept per connection; None asks the environment.
    """

    dsn: str | None
    listen_dsn: str | None
    schema: str
    connect: ConnectFactory | None
    statement_cache_size: int | None

    async def resolve(self) -> "Database":
        """Read the environment, and start the embedded server if that is what is wanted.

        Raises:
            ConfigError: No database is configured, or a setting cannot be used.
            StoreUnavailable: The embedded server does not start.
        """
        server = None
        dsn = "" if self.connect is not None else find_dsn(self.dsn)
        if dsn.startswith(EMBEDDED):
            server = await anyio.to_thread.run_sync(EmbeddedServer.start, dsn.removeprefix(EMBEDDED))
            dsn = server.dsn
        settings = ConnectSettings(dsn, self.schema, self._cache_size(), self.connect)
        listen_dsn = self.listen_dsn or os.environ.get("AIOPGQ_LISTEN_DSN")
        listen = (
            settings if listen_dsn is None else replace(settings, dsn=normal(listen_dsn, "listen_dsn"), connect=None)
        )

        return Database(settings, listen, server)

    def _cache_size(self) -> int:
        if self.statement_cache_size is not None:
            return self.statement_cache_size
        given = os.environ.get("AIOPGQ_STATEMENT_CACHE_SIZE", "100")
        if not given.isdecimal():
            raise ConfigError("AIOPGQ_STATEMENT_CACHE_SIZE", f"takes a number, not {given!r}.")

        return int(given)


@dataclass(frozen=True, slots=True)
class Database:
    """A database that was found.

    Attributes:
        connect: For everything but LISTEN.
        listen: For LISTEN.
        server: The embedded server, if it is one.
    """

    connect: ConnectSettings
    listen: ConnectSettings
    server: EmbeddedServer | None

    def release(self) -> None:
        """Let go of the embedded server; the last one out stops it."""
        if self.server is not None:
            self.server.close()


class Opened:
    """The connections of an open App, bound to the event loop that opened it."""

    def __init__(self, database: Database, *, keep: bool) -> None:
        self.database = database
        self._loop = asyncio.get_running_loop()
        self._inserting: set[asyncio.Future[Any]] = set()
        self._pouring = asyncio.Semaphore(_LINES // 2)
        self.lines = Lines(database.connect, "app", _LINES)
        self._enqueueing = Line(database.connect, "enqueue", timer=DEADLINE)
        self.jobs = Jobs(self.lines)
        self.batcher = Batcher(Jobs(self._enqueueing), keep=keep)
        self.watch = Watch(self.jobs)
        self.results = Results(self.jobs, partial(keep_listening, database.listen, ("done",)))

    @classmethod
    async def open(cls, settings: DatabaseSettings, *, keep: bool) -> "Opened":
        """Find the database, connect, check the schema.

        Raises:
            ConfigError: A setting cannot be used.
            SchemaError: The schema is missing, behind or too far ahead.
            StoreUnavailable: PostgreSQL does not answer.
        """
        database = await settings.resolve()
        line = Line(database.connect, "check")
        try:
            await check_pooler(line)
            await check_schema(line)
        except StatementLost as error:
            database.release()
            raise ConfigError("statement_cache_size", error.remedy) from error
        except BaseException:
            database.release()
            raise
        finally:
            await line.close()
        log.debug("opened on %s, schema %s", masked(database.connect.dsn), settings.schema)

        return cls(database, keep=keep)

    @property
    def left_by_its_loop(self) -> bool:
        """Whether the loop that opened the App was closed without closing the App."""
        return self._loop.is_closed()

    def check_loop(self) -> None:
        """Check that this is the loop that opened the App.

        Raises:
            WrongLoop: It is another.
            AppNotOpen: There is none.
        """
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            raise AppNotOpen("use the App without an event loop") from None
        if here is not self._loop:
            raise WrongLoop

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let closing wait for what is done inside."""
        done = self._loop.create_future()
        self._inserting.add(done)
        try:
            yield
        finally:
            self._inserting.discard(done)
            done.set_result(None)

    async def pour(self, parts: Iterable[Sequence[NewJob]]) -> Attempt | None:
        """Insert jobs as they are made, in one transaction. See `aiopgq._flow.enqueue.pour`."""
        # However long it takes, others find a line that is free.
        async with self._pouring:
            return await pour(self.lines, parts)

    async def insert(
        self, batch: Sequence[NewJob], *, once: bool, keep: bool, before: Attempt | None = None
    ) -> list[Standing]:
        """Insert a batch in one transaction; closing waits for it. See `aiopgq._flow.enqueue.insert`."""
        inserting = asyncio.ensure_future(insert(self.jobs, batch, once=once, keep=keep, before=before))
        self._inserting.add(inserting)
        inserting.add_done_callback(self._inserting.discard)

        return await asyncio.shield(inserting)

    async def close(self) -> None:
        """Finish enqueues under way, close the connections, let go of the embedded server."""
        await self.batcher.finish()
        if self._inserting:
            await asyncio.wait(self._inserting)
        await self.results.close()
        await self.watch.close()
        await self.lines.close()
        await self._enqueueing.close()
        self.database.release()


class Openings:
    """The openings of one App: opening it again while it is open is counted, not done.

    Attributes:
        now: The connections, None while it is not open.
    """

    def __init__(self) -> None:
        self.now: Opened | None = None
        self._count = 0
        self._turn = asyncio.Lock()

    async def enter(self, settings: DatabaseSettings, *, keep: bool) -> None:
        """Open it, or count one opening more.

        Raises:
            AiopgqError: As `Opened.open` and `check_loop` raise.
        """
        if self.now is not None and self.now.left_by_its_loop:
            # A loop that ended without closing the App, as a notebook's may.
            self.now.database.release()
            self.now, self._count = None, 0
        if self._count == 0:
            self._turn = asyncio.Lock()
        elif self.now is not None:
            self.now.check_loop()
        self._count += 1
        try:
            async with self._turn:
                if self.now is None:
                    self.now = await Opened.open(settings, keep=keep)
                self.now.check_loop()
        except BaseException:
            self._count -= 1
            raise

    async def leave(self) -> None:
        """Take one opening back; the last closes the connections."""
        self._count -= 1
        if self._count == 0 and self.now is not None:
            opened, self.now = self.now, None
            await opened.close()

    def get(self, doing: str) -> Opened:
        """Return the connections.

        Raises:
            AppNotOpen: It is not open.
            WrongLoop: It is open in another event loop.
        """
        if self.now is None:
            raise AppNotOpen(doing)
        self.now.check_loop()

        return self.now
