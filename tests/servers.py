"""PostgreSQL servers of a test's own, on a port of their own, to be stopped, starved and replaced."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import asynccontextmanager

import asyncpg
from support import eventually

from aiopgq.embedded import find_binaries, supervisor

__all__ = ["Server"]

HOW = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# They survive what the tests do to them, which is never a loss of power.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "16MB",
}


class Server:
    """A server in a folder; its data outlive its process.

    Attributes:
        dsn: Where it is, also while it is down.
        address: The same as host:port.
    """

    def __init__(self, folder, **settings):
        self._folder = folder
        self._binaries = find_binaries()
        self._settings = {**SETTINGS, **settings}
        self._process = None
        folder.mkdir(mode=0o700, exist_ok=True)
        self._identity = supervisor._choose_identity(folder, self._binaries)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.dsn = f"postgresql://postgres@{self.address}/postgres"

    @property
    def data(self):
        return self._folder / "data"

    @property
    def log(self):
        """What it has said on its standard error, since it was first started."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def runs(self):
        return self._process is not None and self._process.poll() is None

    def make(self):
        """Make new data."""
        command = [self._binaries / "initdb", "-D", self.data, *supervisor.INITDB_OPTIONS, "--locale=C", "--no-sync"]
        subprocess.run(command, preexec_fn=self._identity.become, check=True, capture_output=True, env=_bare())

    def copy(self, data):
        """Take over the data of a server that is down."""
        shutil.copytree(data, self.data)
        for path in (self.data, *self.data.rglob("*")):
            self._identity.give(path)

    def move(self, part, folder):
        """Have a part of the data elsewhere, on another disk for example."""
        shutil.move(self.data / part, folder / part)
        for path in (folder / part, *(folder / part).rglob("*")):
            self._identity.give(path)
        (self.data / part).symlink_to(folder / part)

    def follow(self, other):
        """Be a standby of another server, whose data were copied."""
        host, port = other.address.split(":")
        self._settings["primary_conninfo"] = f"host={host} port={port} user=postgres"
        self._settings["wal_retrieve_retry_interval"] = "100ms"
        signal_file = self.data / "standby.signal"
        signal_file.touch()
        self._identity.give(signal_file)

    async def start(self):
        """Start, and wait until it answers."""
        command = [self._binaries / "postgres", "-D", self.data, "-p", str(self._port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / "log").open("ab") as log:
            # In this very thread, whose end is the server's.
            become = supervisor._child(self._identity, signal.SIGQUIT)
            self._process = subprocess.Popen(  # noqa: ASYNC220  # milliseconds
                command,
                preexec_fn=become,  # noqa: PLW1509  # it takes no lock
                stderr=log,
                env=_bare(),
            )

        async def up():
            assert self.runs, self.log[-2000:]
            return await self.answers()

        await eventually(up, within=30, every=0.05, what="the server answers")

    async def answers(self):
        """Tell whether it takes connections."""
        try:
            connection = await asyncpg.connect(self.dsn, timeout=5)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        connection.terminate()
        return True

    async def stop(self, how="fast"):
        """Stop as `pg_ctl stop -m` does; what has stopped already is no trouble."""
        if self.runs:
            self._process.send_signal(HOW[how])
            await eventually(lambda: not self.runs, within=30, what=f"the server stops ({how})")

    async def ask(self, sql, *args):
        """Ask for one value over a connection made for it."""
        async with self._connected() as connection:
            return await connection.fetchval(sql, *args)

    async def set(self, setting, value):
        """Change a setting of the running server, for everybody at once."""
        async with self._connected() as connection:
            await connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
            await connection.execute("SELECT pg_reload_conf()")

    @asynccontextmanager
    async def _connected(self):
        # Whatever is set for others.
        mine = {"default_transaction_read_only": "off"}
        connection = await asyncpg.connect(self.dsn, timeout=5, server_settings=mine)
        try:
            yield connection
        finally:
            await connection.close()


def _bare():
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
