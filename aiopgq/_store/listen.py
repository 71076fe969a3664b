"""The LISTEN connection: one per process, outside every pool, and sceptical about itself.

A half-open socket gives no sign, and a pooler accepts LISTEN without ever delivering. So the listener proves itself
by a NOTIFY at start, and pings on its own timer; whoever depends on it is told when it is deaf. Behind a pooler the
NOTIFY comes from a second connection: one's own would come back by the server process that sent it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from aiopgq._store.connection import CLOSE_TIMEOUT, ConnectSettings
from aiopgq._store.patience import comes
from aiopgq._store.pooler import is_direct
from aiopgq._store.statements import channel
from aiopgq._store.trouble import Undelivered, translated
from aiopgq.errors import StoreUnavailable

__all__ = ["Ear", "listen"]

PROOF_TIMEOUT: Final = 5.0
PING_INTERVAL: Final = 15.0
PING_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Ear:
    """What a listener tells its owner.

    Attributes:
        heard: Called with the topic and the payload of every notification.
        listening: Called when LISTEN is active and proven; whatever came before it may have been missed.
    """

    heard: Callable[[str, str], None]
    listening: Callable[[], None]


async def listen(settings: ConnectSettings, topics: tuple[str, ...], ear: Ear, stop: asyncio.Event) -> None:
    """Listen on one connection until `stop` is set or the connection is lost.

    Raises:
        StoreUnavailable: The connection cannot be made, was lost, or delivers no notifications.
        Undelivered: It delivers none because it leads through a pooler.
        StoreError: PostgreSQL refused LISTEN (a server in recovery does).
    """
    lost = asyncio.Event()
    proven = asyncio.Event()
    token = uuid4().hex
    by_channel = {channel(settings.schema, topic): topic for topic in topics}
    proof = channel(settings.schema, "ping")

    def hear(_connection: Any, _pid: int, name: str, payload: str) -> None:
        if name == proof:
            if payload == token:
                proven.set()
        else:
            ear.heard(by_channel[name], payload)

    with translated("listen for notifications", settings.schema):
        connection = await settings.open("listen")
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await _in_time(connection.add_listener(proof, hear))
            async with asyncio.timeout(PROOF_TIMEOUT):
                direct = await is_direct(connection)
                await (_notify(connection, proof, token) if direct else _notify_from_elsewhere(settings, proof, token))
            await _hear(proven, direct=direct)
            for name in by_channel:
                await _in_time(connection.add_listener(name, hear))
            ear.listening()
            await _until_lost(connection, lost, stop)
        finally:
            await _close(connection)
    if not stop.is_set():
        raise StoreUnavailable("the listening connection was lost")


async def _notify(connection: Any, name: str, token: str) -> None:
    await connection.execute("SELECT pg_notify($1, $2)", name, token)


async def _notify_from_elsewhere(settings: ConnectSettings, name: str, token: str) -> None:
    other = await settings.open("listen")
    try:
        await _notify(other, name, token)
    finally:
        other.terminate()


async def _hear(proven: asyncio.Event, *, direct: bool) -> None:
    if not await comes(proven, PROOF_TIMEOUT):
        raise TimeoutError if direct else Undelivered


async def _until_lost(connection: Any, lost: asyncio.Event, stop: asyncio.Event) -> None:
    ends = [asyncio.ensure_future(lost.wait()), asyncio.ensure_future(stop.wait())]
    try:
        while not lost.is_set() and not stop.is_set():
            done, _ = await asyncio.wait(ends, timeout=PING_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await _in_time(connection.execute("SELECT 1"))
    finally:
        for end in ends:
            end.cancel()


async def _in_time(work: Awaitable[Any]) -> None:
    async with asyncio.timeout(PING_TIMEOUT):
        await work


async def _close(connection: Any) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await connection.close()
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise
