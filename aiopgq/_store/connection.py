"""Connections of our own: each heals itself, carries one statement at a time, and never waits for ever.

asyncpg's own timeouts can hang on a half-open socket and leave the connection in an unknown state; so every
statement runs under a timer of ours, and a connection that failed in the middle is terminated, never reused.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from aiopgq._store.dsn import Hosts
from aiopgq._store.trouble import PASSING, NotSent, translated
from aiopgq._words.clock import monotonic

__all__ = ["ConnectFactory", "ConnectSettings", "Line", "Lines"]

# Below every timer of a statement, so that a connection that was never made is told from a lost answer.
CONNECT_TIMEOUT: Final = 5.0
STATEMENT_TIMEOUT: Final = 30.0
CLOSE_TIMEOUT: Final = 2.0
_CANCEL_TIME: Final = 1.0
# A firewall forgets a line that is silent for minutes, and a host that is gone answers nothing: the kernel asks,
# and gives a line up long before the timer of a statement would. What a system does not know is left out.
_TCP: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}

ConnectFactory = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """How connections are made.

    Attributes:
        dsn: A URL as asyncpg reads it.
        schema: The schema of our tables.
        statement_cache_size: Prepared statements kept per connection; 0 behind PgBouncer before 1.21.
        connect: Makes a connection instead of the DSN, for tokens and connectors.
        options: Further keyword arguments for `asyncpg.connect`.
    """

    dsn: str
    schema: str
    statement_cache_size: int = 100
    connect: ConnectFactory | None = None
    options: dict[str, Any] = field(default_factory=dict)
    _hosts: Hosts = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hosts", Hosts(self.dsn))

    async def open(self, purpose: str) -> Any:
        """Open a connection; its application_name tells what it is for.

        Raises:
            NotSent: The factory failed, in whatever way; a token service that is away comes back.
            Exception: What asyncpg raises.
        """
        dsn = self._hosts.dsn
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._open(dsn, purpose)
        except TimeoutError:
            self._hosts.silent(dsn)
            raise
        _keep_alive(connection)

        return connection

    async def _open(self, dsn: str, purpose: str) -> Any:
        if self.connect is not None:
            try:
                return await self.connect()
            except Exception as error:
                raise NotSent(f"connect for {purpose} ({type(error).__name__}: {error})") from error

        return await asyncpg.connect(
            dsn,
            statement_cache_size=self.statement_cache_size,
            server_settings={"application_name": f"aiopgq {purpose}"},
            **self.options,
        )


def _keep_alive(connection: Any) -> None:
    """Let the kernel see to it that the other end is still there."""
    # asyncpg has neither a setting for it nor a public way to the socket; a connect function may give anything.
    transport = getattr(connection, "_transport", None)
    plug = None if transport is None else transport.get_extra_info("socket")
    if plug is None or plug.family == getattr(socket, "AF_UNIX", None):
        return
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if (option := getattr(socket, name, None)) is not None:
            plug.setsockopt(socket.IPPROTO_TCP, option, value)


class Line:
    """One connection, opened when first needed and again after trouble.

    Args:
        settings: How to connect.
        purpose: What the connection is for; part of its application_name.
        timer: Seconds until a statement's connection is given up.
    """

    def __init__(self, settings: ConnectSettings, purpose: str, timer: float = STATEMENT_TIMEOUT) -> None:
        self.settings = settings
        self.purpose = purpose
        self.timer = timer
        self.users = 0
        self._connection: Any = None
        self._asked_at: float | None = None
        self._abandoned: list[Any] = []
        self._turn = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not known to be broken."""
        return self._connection is not None and not self._connection.is_closed()

    @property
    def backend_pid(self) -> int | None:
        """The pid of the server process behind it, None while there is none."""
        pid: int | None = self._connection.get_server_pid() if self.connected else None
        return pid

    @property
    def waits_for(self) -> float:
        """Seconds since what is under way was asked; 0 while nothing is."""
        return 0.0 if self._asked_at is None else monotonic() - self._asked_at

    async def open(self) -> None:
        """Connect now rather than when first used.

        Raises:
            StoreUnavailable: The server cannot be reached.
            StoreError: It refuses.
        """
        async with self.borrow("connect"):
            pass

    async def fetch(self, doing: str, sql: str, *args: Any) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows.

        Cancelling the caller ends the connection; whether the statement was committed is then unknown.

        Args:
            doing: What it is for, as an error message would say it.
            sql: The statement.
            args: Its parameters.

        Raises:
            StoreUnavailable: No answer in time, or the connection was lost.
            StoreError: PostgreSQL said no.
        """
        async with self.borrow(doing) as connection:
            rows: list[Any] = await connection.fetch(sql, *args)
            return rows

    @asynccontextmanager
    async def borrow(self, doing: str, *, timed: bool = True) -> AsyncIterator[Any]:
        """Lend the connection to one user at a time, for `timer` seconds at most unless he has a timer of his own."""
        self.users += 1
        try:
            async with self._turn:
                with translated(doing, self.settings.schema):
                    try:
                        self._asked_at = monotonic()
                        async with asyncio.timeout(self.timer if timed else None):
                            await self._connect()
                            yield self._connection
                    except TimeoutError:
                        self._abandon()
                        raise
                    except asyncpg.ReadOnlySQLTransactionError:
                        # After a failover the server we know may live on as a standby: the next try may find another.
                        self._terminate()
                        raise
                    except (asyncio.CancelledError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                        # An answer may still be on its way: nobody may read it as the answer to his own question.
                        self._terminate()
                        raise
                    finally:
                        self._asked_at = None
        finally:
            self.users -= 1

    async def _connect(self) -> None:
        if self.connected:
            return
        try:
            self._connection = await self.settings.open(self.purpose)
        except asyncpg.ClientConfigurationError:
            raise  # an InterfaceError that waiting does not cure
        except PASSING as error:
            raise NotSent(f"connect for {self.purpose} ({type(error).__name__}: {error})") from error

    def _abandon(self) -> None:
        """Give up a connection whose statement took too long; first asyncpg's request to cancel it must get away."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._abandoned.append(connection)
            asyncio.get_running_loop().call_later(_CANCEL_TIME, self._bury)

    def _bury(self) -> None:
        while self._abandoned:
            self._abandoned.pop().terminate()

    def _terminate(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection; the line may be used again."""
        self._bury()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await connection.close()
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


class Lines:
    """A few lines for callers that come and go; each statement takes one that is free."""

    def __init__(self, settings: ConnectSettings, purpose: str, size: int) -> None:
        self.settings = settings
        self._lines = [Line(settings, purpose) for _ in range(size)]

    async def fetch(self, doing: str, sql: str, *args: Any) -> list[Any]:
        """Run one statement on a free line; see `Line.fetch`."""
        return await self._free().fetch(doing, sql, *args)

    def borrow(self, doing: str, *, timed: bool = True) -> AbstractAsyncContextManager[Any]:
        """Lend the connection of a free line; see `Line.borrow`."""
        return self._free().borrow(doing, timed=timed)

    def _free(self) -> Line:
        # Connected ones first, so that an idle program keeps few connections.
        return min(self._lines, key=lambda line: (line.users, not line.connected))

    async def close(self) -> None:
        """Close all connections."""
        for line in self._lines:
            await line.close()
