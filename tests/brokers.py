"""Brokers for tests: plain processes on loopback that end with the tests, and can be killed and started again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

__all__ = ["Nats", "Rabbit", "Redis", "free_port", "require"]

# Linux takes the thread that starts a process for its parent; this one lasts as long as the tests.
STARTER = ThreadPoolExecutor(1)
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]


def require(program):
    """Return the program; without it skip the test, or fail it where CI has brought it."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/lib/rabbitmq/bin")
    if found is None:
        message = f"there is no {program} on this machine; as root: tests/debian.sh"
        if program in os.environ.get("AIOPGQ_CI_REQUIRE", "").split():
            pytest.fail(message)
        pytest.skip(message)
    return found


def free_port():
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        return plug.getsockname()[1]


class Broker:
    """A process in a folder of its own; use it with `with`, and kill and restart it from a thread.

    Attributes:
        url: Where it is, the same after a restart.
    """

    patience = 15

    def __init__(self):
        self.port = free_port()
        self._folder = None
        self._processes = []

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix=f"{type(self).__name__.lower()}-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.kill()
        self._folder.cleanup()

    def start(self):
        for command in self.commands():
            with (self.folder / "log").open("ab") as log:
                starting = STARTER.submit(
                    subprocess.Popen,
                    [*DIES_WITH_US, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environment()},
                    start_new_session=True,
                )
                self._processes.append(starting.result())
        deadline = time.monotonic() + self.patience
        while not self.answers():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[-1].wait(0.02)
                raise AssertionError((self.folder / "log").read_text())

    def kill(self):
        while self._processes:
            process = self._processes.pop()
            with contextlib.suppress(ProcessLookupError):
                # A broker may be a script that starts others.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def restart(self):
        self.kill()
        self.start()

    def environment(self):
        return {}

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as plug:
                plug.sendall(self.greeting)
                return plug.recv(100).startswith(self.answer)
        except OSError:
            return False


class Nats(Broker):
    """NATS with JetStream, its files synced so that a kill loses no confirmed message."""

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    greeting, answer = b"", b"INFO"

    def commands(self):
        settings = self.folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder}/data", max_memory_store: 256MB, max_file_store: 1GB }}\n'
        )
        return [[require("nats-server"), "-c", settings]]


class Redis(Broker):
    """Redis, which writes each change to disk."""

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    greeting, answer = b"PING\r\n", b"+PONG"

    def commands(self):
        server = [require("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
        return [[*server, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]]


class Rabbit(Broker):
    """RabbitMQ, with names and ports of its own."""

    patience = 60

    def __init__(self):
        super().__init__()
        self._distribution = free_port()
        self._epmd = free_port()

    @property
    def url(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    # Answered by the first byte of a method frame.
    greeting, answer = b"AMQP\x00\x00\x09\x01", b"\x01"

    def commands(self):
        require("rabbitmq-server")
        # Debian's wrapper would become another user; and an epmd of its own would outlive it as a daemon.
        return [["epmd", "-port", str(self._epmd)], ["/usr/lib/rabbitmq/bin/rabbitmq-server"]]

    def environment(self):
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._epmd),
            "RABBITMQ_NODENAME": f"aiopgq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
        }
