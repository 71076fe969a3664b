"""People who use an embedded server, and eyes for what they leave behind."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import pytest

from aiopgq.embedded import EmbeddedServer

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import sys
from aiopgq.embedded import EmbeddedServer
server = EmbeddedServer.start(sys.argv[1])
print(server.version, server.dsn, flush=True)
sys.stdin.read()
"""


class User:
    """A process that starts or attaches to a server, says so, and stays until told otherwise."""

    def __init__(self, folder, *, program=PROGRAM, prefix=(), env=None):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", program, str(folder)],
            cwd=REPOSITORY,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def dsn(self):
        """Wait for the server and return its DSN."""
        line = self.process.stdout.readline().split()
        assert line, self.process.stderr.read()
        return line[1]

    def answers_within(self, seconds):
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        return bool(readable)

    def leave(self):
        """Exit as a program does, and return what it said on standard error."""
        return self.process.communicate(timeout=60)[1]

    def end_by(self, number):
        self.process.send_signal(number)
        self.leave()


class Eyes:
    """What runs in a folder, as the kernel tells it."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder / "data"

    def postmaster(self):
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def supervisor(self):
        status = Path(f"/proc/{self.postmaster()}/status").read_text()
        return int(status.split("PPid:")[1].split()[0])

    def log(self):
        return (self.folder / "server.log").read_text()

    def processes(self):
        """Every supervisor and every process of PostgreSQL of this folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                supervises = os.fsencode(self.folder) in words and any(b"supervisor.py" in w for w in words)
                if supervises or (process / "cwd").readlink() == self.data:
                    found.append(int(process.name))
        return found

    def kill_everything(self):
        """SIGKILL the youngest first, so that nobody has the time to tidy up after a parent."""
        for pid in sorted(self.processes(), reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def nothing_runs(self):
        return not self.processes()


def eventually(condition, seconds=30):
    """Return once the condition holds, fail with its name if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {condition.__name__}"
        time.sleep(0.02)


def ask(dsn, sql):
    """Ask the server for one value over a connection of its own."""

    async def fetch():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(fetch())


@pytest.fixture(name="eventually")
def _eventually():
    return eventually


@pytest.fixture(name="ask")
def _ask():
    return ask


@pytest.fixture
def place():
    """A private place with a short path, gone afterwards; in memory, if there is enough, to save time."""
    memory = Path("/dev/shm")  # noqa: S108  # mkdtemp makes it private
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    made = Path(tempfile.mkdtemp(prefix="pgq-", dir=memory if roomy else None)).resolve()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def folder(place, users):
    """A folder not made yet; after the test nothing may run in it."""
    yield place / "db"
    users.everybody_leaves()
    eventually(Eyes(place / "db").nothing_runs)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A folder whose data are made and whose server has stopped."""
    made = tmp_path_factory.mktemp("template") / "db"
    EmbeddedServer.start(made).close()
    eventually(Eyes(made).nothing_runs)
    return made


@pytest.fixture
def furnished(folder, template):
    """Spare a test that is not about it the time to make data."""
    shutil.copytree(template, folder)
    return folder


@pytest.fixture
def eyes(folder):
    return Eyes(folder)


@pytest.fixture
def users():
    """Make users; whoever is still there at the end is sent away."""

    class Users(list):
        def __call__(self, folder, **options):
            self.append(User(folder, **options))
            return self[-1]

        def everybody_leaves(self):
            for user in self:
                if user.process.poll() is None:
                    user.end_by(signal.SIGKILL)
                for stream in (user.process.stdin, user.process.stdout, user.process.stderr):
                    with contextlib.suppress(OSError):
                        stream.close()

    made = Users()
    yield made
    made.everybody_leaves()
