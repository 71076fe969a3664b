"""A TCP proxy between us and PostgreSQL that misbehaves on demand."""

import asyncio
import contextlib
import socket
import struct
from urllib.parse import parse_qsl, urlsplit, urlunsplit

__all__ = ["Proxy"]

_CHUNK = 65536


class Proxy:
    """Passes bytes on until told otherwise; use it with `async with`.

    Attributes:
        dsn: Where to connect instead.
        address: The same as host:port.
        delay: Seconds each chunk is held back.
        refusing: New connections are reset at once.
        black_hole: Bytes vanish in both directions; nobody is told.
        lose_answer: The next bytes from the server are swallowed, their connection is reset, new ones are
            refused: what was asked has happened, whoever asked cannot know.
        accepted: Connections passed on so far.
        turned_away: Connections refused so far.
    """

    def __init__(self, dsn):
        self._upstream = urlsplit(dsn)
        self._query = dict(parse_qsl(self._upstream.query))
        self._server = None
        self._open = set()
        self._late = {}
        self._handlers = set()
        self.dsn = None
        self.address = None
        self.delay = 0.0
        self.refusing = False
        self.black_hole = False
        self.lose_answer = False
        self.accepted = 0
        self.turned_away = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user, at, _ = self._upstream.netloc.rpartition("@")
        self.address = f"127.0.0.1:{port}"
        self.dsn = urlunsplit(self._upstream._replace(netloc=f"{user}{at}{self.address}", query=""))
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()
        if self._handlers:
            await asyncio.wait(self._handlers)

    def cut(self):
        """Reset all connections, as a crash or a firewall does."""
        for writer in list(self._open):
            _reset(writer)

    def slow(self, delays):
        """Hold back each connection that is open now by seconds of its own; new ones are as fast as ever."""
        self._late = {writer: next(delays) for writer in self._open}

    async def _pass_on(self, reader, writer):
        self._handlers.add(asyncio.current_task())
        try:
            await self._connect(reader, writer)
        finally:
            _reset(writer)
            self._handlers.discard(asyncio.current_task())

    async def _connect(self, reader, writer):
        if self.refusing:
            self.turned_away += 1
            return
        self.accepted += 1
        try:
            from_server, to_server = await self._reach()
        except OSError:  # there is no server at the moment
            return
        self._open |= {writer, to_server}
        try:
            await asyncio.gather(
                self._pump(reader, to_server, answers=False),
                self._pump(from_server, writer, answers=True),
                return_exceptions=True,  # a reset is what they end with
            )
        finally:
            self._open -= {writer, to_server}
            _reset(to_server)

    async def _reach(self):
        """Connect to the server, which the embedded one's DSN names by the folder of its socket."""
        if "host" in self._query:
            return await asyncio.open_unix_connection(f"{self._query['host']}/.s.PGSQL.{self._query['port']}")
        return await asyncio.open_connection(self._upstream.hostname, self._upstream.port)

    async def _pump(self, reader, writer, *, answers):
        try:
            while data := await reader.read(_CHUNK):
                await asyncio.sleep(self.delay + self._late.get(writer, 0.0))
                if answers and self.lose_answer:
                    self.lose_answer = False
                    self.refusing = True
                    return
                if not self.black_hole:
                    writer.write(data)
                    await writer.drain()
        finally:
            # The end of one direction is the end of both.
            _reset(writer)


def _reset(writer):
    plug = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
