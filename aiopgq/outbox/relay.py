"""The relay as programs hold it: its faces, its start and its end. It is one tenure after another."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Self

from aiopgq._store.connection import ConnectSettings
from aiopgq._store.patience import Patience, comes
from aiopgq.errors import StoreError, StoreUnavailable, UsageError
from aiopgq.outbox.publisher import Publisher
from aiopgq.outbox.tenure import Conduct, Tenure

__all__ = ["Relay"]

log = logging.getLogger("aiopgq.relay")

_CLOSE_TIMEOUT: Final = 5.0


class Relay:
    """Publishes the events of the outbox until it is told to stop; made by `jobs.outbox.relay(…)`.

    Any number of them share the work, in any number of processes.

    - `async with jobs, jobs.worker(), jobs.outbox.relay(publisher):` beside your own program
    - `await jobs.outbox.relay(publisher).run()` as a program of its own
    - `FastAPI(lifespan=jobs.outbox.relay(publisher).lifespan)`, for aiohttp `app.cleanup_ctx.append(….cleanup_ctx)`

    It installs no signal handlers, configures no logging and never ends the process.
    """

    def __init__(
        self,
        app: AbstractAsyncContextManager[Any],
        where: Callable[[], tuple[ConnectSettings, ConnectSettings]],
        publisher: Publisher,
        conduct: Conduct,
    ) -> None:
        self._app = app
        self._where = where
        self._publisher = publisher
        self._conduct = conduct
        self._name = conduct.name or socket.gethostname()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._tenure: Tenure | None = None
        self._published = 0

    @property
    def published(self) -> int:
        """Events that brokers confirmed, so far."""
        return self._published + (self._tenure.published if self._tenure is not None else 0)

    async def run(self) -> None:
        """Open the App if need be and publish until stopped, or with burst until nothing is left.

        While PostgreSQL cannot be reached at the start it is tried again, with a growing pause.

        Raises:
            SchemaError: The schema is missing, behind or too far ahead.
            AiopgqError: The configuration cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        patience = Patience(log, "start the relay")
        while not self._stopping.is_set():
            try:
                async with self._app, self:
                    assert self._main is not None  # noqa: S101  # set by __aenter__
                    await asyncio.wait([self._main])
                return
            except StoreUnavailable as error:
                await comes(self._stopping, patience.failed(error))

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """Serve as the lifespan of a Starlette or FastAPI app; opens the App as well."""
        async with self._app, self:
            yield

    async def cleanup_ctx(self, _app: Any) -> AsyncIterator[None]:
        """Serve as an aiohttp cleanup context; opens the App as well."""
        async with self._app, self:
            yield

    async def __aenter__(self) -> Self:
        """Start, and return when the relay holds its share.

        Raises:
            UsageError: It is entered already.
            AppNotOpen: The App is not open.
            StoreError: PostgreSQL refused, or did not answer.
        """
        if self._main is not None:
            raise UsageError("This relay is entered already; make another with jobs.outbox.relay(…).")
        self._loop = asyncio.get_running_loop()
        tenure = await self._begun()
        # A task of its own: an app's lifespan may enter and leave in different tasks.
        self._main = self._loop.create_task(self._serve(tenure))

        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish what is being published, give the shards back."""
        self._stop()
        main, self._main = self._main, None
        cancelled: asyncio.CancelledError | None = None
        while main is not None and not main.done():
            try:
                await asyncio.wait([main])
            except asyncio.CancelledError as error:
                cancelled = error
                main.cancel()
        # A program may enter it again, in another loop perhaps: a web app under test does.
        self._stopping, self._loop = asyncio.Event(), None
        if cancelled is not None:
            raise cancelled
        if main is not None:
            main.result()

    def stop(self) -> None:
        """Stop, from any thread and at any time, also before the start; more than once is fine."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)
        else:
            self._stopping.set()

    def _stop(self) -> None:
        self._stopping.set()
        if self._tenure is not None:
            self._tenure.stop()

    async def _serve(self, tenure: Tenure | None) -> None:
        """Be one tenure after the other until told to stop."""
        try:
            while tenure is not None:
                try:
                    await tenure.serve()
                finally:
                    self._tenure = None
                    self._published += tenure.published
                tenure = await self._begun_again() if tenure.lost else None
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                log.critical("the relay has died: %s", error, exc_info=error)
            raise
        finally:
            await self._close_publisher()
        log.info("relay %s has stopped", self._name)

    async def _begun(self) -> Tenure:
        connect, listen = self._where()
        tenure = Tenure(self._name, connect, listen, self._publisher, self._conduct)
        await tenure.begin()
        self._tenure = tenure
        if self._stopping.is_set():
            tenure.stop()

        return tenure

    async def _begun_again(self) -> Tenure | None:
        """Return from a lost lease, when the database is back; None if told to stop before."""
        patience = Patience(log, "return as a new relay")
        while not self._stopping.is_set():
            try:
                return await self._begun()
            except StoreError as error:
                await comes(self._stopping, patience.failed(error))

        return None

    async def _close_publisher(self) -> None:
        close = getattr(self._publisher, "close", None)
        if close is not None:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await close()
            except Exception as error:  # noqa: BLE001  # good manners only; the broker may be away
                log.debug("cannot close the publisher: %s", error)
