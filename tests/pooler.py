"""PgBouncer between us and PostgreSQL, a plain process on loopback.

Every program that is found is tested: that of the PATH, what `tests/debian.sh` built, and those that
`AIOPGQ_TEST_PGBOUNCER` names, separated like the PATH.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

__all__ = ["PgBouncer", "Program", "find_programs"]

BUILT = Path(__file__).parents[1] / ".cache" / "pgbouncer" / "pgbouncer"

SETTINGS = """
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
{more}
"""


class Program(NamedTuple):
    """A pgbouncer of this machine."""

    path: str
    version: tuple[int, ...]

    @property
    def keeps_statements(self):
        """Whether prepared statements outlive a transaction, as by default since 1.21."""
        return self.version >= (1, 21)

    @property
    def settings(self):
        """What an App needs behind it, and a connection of the caller's."""
        return {} if self.keeps_statements else {"statement_cache_size": 0}

    def __str__(self):
        return ".".join(map(str, self.version))


def find_programs():
    """Return one program of each version that this machine has, oldest first."""
    named = os.environ.get("AIOPGQ_TEST_PGBOUNCER", "").split(os.pathsep)
    installed = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    found = {}
    for path in (*named, installed, BUILT):
        if path and Path(path).is_file():
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            found[tuple(map(int, said.split()[1].split(".")))] = str(path)

    return [Program(path, version) for version, path in sorted(found.items())]


class PgBouncer:
    """A pooler in transaction mode; use it with `async with`.

    Args:
        dsn: The server.
        program: Which pgbouncer.
        size: How many connections it has to the server.
        more: Further lines of its settings.

    Attributes:
        dsn: Where to connect instead.
    """

    def __init__(self, dsn, program, *, size=5, more=""):
        self._upstream = urlsplit(dsn)
        self._program = program
        self._size = size
        self._more = more
        self._folder = None
        self._process = None
        self.dsn = None

    async def __aenter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory(prefix="pgbouncer-")
        folder = Path(self._folder.name)
        settings = folder / "pgbouncer.ini"
        settings.write_text(SETTINGS.format(server=self._server(), port=port, size=self._size, more=self._more))
        with (folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_shell(), self._program.path, settings, stdout=log, stderr=log
            )
        netloc = f"{self._upstream.username}@127.0.0.1:{port}"
        self.dsn = urlunsplit(self._upstream._replace(netloc=netloc, query=""))
        try:
            await self._ready(port)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_):
        await self._end()

    async def _end(self):
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._folder.cleanup()

    def _server(self):
        query = dict(parse_qsl(self._upstream.query))
        host = query.get("host") or self._upstream.hostname
        port = query.get("port") or self._upstream.port or 5432
        password = f" password={self._upstream.password}" if self._upstream.password else ""
        return f"host={host} port={port} user={self._upstream.username}{password}"

    async def _ready(self, port):
        async with asyncio.timeout(10):
            while True:
                assert self._process.returncode is None, (Path(self._folder.name) / "log").read_text()
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(0)


def _shell():
    """It refuses to be root; in a user namespace root is nobody, and still reads root's files and sockets."""
    dies_with_us = ["setpriv", "--pdeathsig", "KILL"]
    return ["unshare", "--user", *dies_with_us] if os.geteuid() == 0 else dies_with_us
