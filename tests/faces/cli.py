"""The real command line: `python -m aiopgq` as a process of its own, with a small App in the current folder."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from aiopgq import App

__all__ = ["Cli", "Forge", "Run", "Said", "alive", "enqueue"]

WORK = """
import asyncio, logging, os, pathlib, threading, time
from aiopgq import App, current_job

jobs = App()
log = logging.getLogger("work")

def note(text):
    with open("notes", "a") as notes:
        notes.write(f"{text}\\n")

def noted():
    return pathlib.Path("notes").read_text().split()

@jobs.task
async def add(a: int, b: int = 2) -> int:
    return a + b

@jobs.task(queue="mail", max_attempts=1, timeout=None)
async def fail(reason: str) -> None:
    raise ValueError(reason)

@jobs.task
async def tell(secret: str) -> None:
    log.info("in a job")

@jobs.task
async def begin(seconds: float) -> None:
    note(time.time())
    await asyncio.sleep(seconds)

@jobs.task
async def meet(others: int) -> None:
    note(os.getpid())
    while len(set(noted())) < others:
        await asyncio.sleep(0.02)

@jobs.task
async def loop_name() -> str:
    return type(asyncio.get_running_loop()).__module__.split(".")[0]

@jobs.task(max_attempts=2)
async def fifth() -> str:
    note("visit")
    if len(noted()) < 5:
        await asyncio.sleep(60)
    return "done"

@jobs.task
async def stubborn() -> None:
    note("stubborn")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass

@jobs.task
def thread() -> None:
    note("thread")
    time.sleep(60)

@jobs.task
async def block() -> None:
    note("block")
    time.sleep(60)
"""


FORGE = """
import json, os, runpy, sys
import aiopgq.cli.group, aiopgq.cli.run, aiopgq.cli.jobs, aiopgq.cli.dead, aiopgq.cli.tasks, aiopgq.cli.enqueue
import aiopgq.cli.inbox, aiopgq.cli.schedules

for line in sys.stdin:
    order = json.loads(line)
    if not (child := os.fork()):
        for number, file in ((1, order["out"]), (2, order["err"])):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["env"])
        sys.path[0] = order["folder"]
        sys.argv = ["aiopgq", *order["args"]]
        runpy.run_module("aiopgq", run_name="__main__")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forge:
    """Forks processes that have aiopgq imported: a command takes milliseconds then."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, folder, args, env):
        """Run `python -m aiopgq` with these arguments, to its end."""
        files = {name: str(folder / f".{name}") for name in ("out", "err")}
        order = {"folder": str(folder), "args": [*map(str, args)], "env": env, **files}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Said(code, *(Path(file).read_text() for file in files.values()))

    def close(self):
        """End it."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Said(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class Cli:
    """Calls the command line in a folder of its own."""

    def __init__(self, forge, folder, dsn):
        self._forge = forge
        self.folder = folder
        ours = re.compile(r"AIOPGQ_|PG|DATABASE_URL")
        self.env = {name: value for name, value in os.environ.items() if not ours.match(name)} | {"AIOPGQ_DSN": dsn}
        self._runs = []
        self._started = []
        self.write("work", WORK)

    def write(self, module, text):
        """Write a module of the user's into the current folder."""
        (self.folder / f"{module}.py").write_text(text)

    @property
    def notes(self):
        """What handlers noted."""
        notes = self.folder / "notes"
        return notes.read_text().split() if notes.exists() else []

    def __call__(self, *args, **env):
        """Run a command to its end."""
        return self._forge(self.folder, args, self.env | env)

    def run(self, *args, **env):
        """Start `run`."""
        running = Run(self, args, self.env | env)
        self._runs.append(running)
        return running

    def start(self, *args):
        """Start a command whose stdout the test reads, and which it waits for."""
        command = [sys.executable, "-m", "aiopgq", *map(str, args)]
        started = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True)
        self._started.append(started)
        return started

    def close(self):
        """End what a failed test has left."""
        for running in self._runs:
            running.close()
        for started in self._started:
            started.kill()
            started.wait()
            started.stdout.close()


class Run:
    """A `run` under way; its stderr is read line by line."""

    def __init__(self, cli, args, env):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aiopgq", "run", *map(str, args)],
            cwd=cli.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines = []
        self._arrived = threading.Condition()
        self._read_to = 0
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._arrived:
                self.lines.append(line)
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    @property
    def err(self):
        return "".join(self.lines)

    def line(self, pattern, within=30):
        """Wait for the next line that has the pattern; return the match."""
        deadline = time.monotonic() + within
        with self._arrived:
            while True:
                while self._read_to < len(self.lines):
                    self._read_to += 1
                    if found := re.search(pattern, self.lines[self._read_to - 1]):
                        return found
                if self._ended or not self._arrived.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no line with {pattern!r}:\n{self.err}")

    def child(self):
        """Wait until the next worker process has started; return its pid."""
        return int(self.line(r"started worker process (\d+)")[1])

    def ready(self):
        """Wait until the next worker claims jobs."""
        self.line("worker .* serves")

    def stop(self, number=signal.SIGTERM):
        """Send a signal to the parent only."""
        self.process.send_signal(number)

    def end(self, within=30):
        """Wait for the end; return the exit code."""
        code = self.process.wait(within)
        self._reader.join(within)
        return code

    def close(self):
        """Kill it, and its worker processes."""
        for pid in [*map(int, re.findall(r"started worker process (\d+)", self.err)), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


def alive(pid):
    """Tell whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:  # gone meanwhile, or a system without /proc
        return not Path("/proc/self").exists()


async def enqueue(dsn, task, *calls, **options):
    """Enqueue calls of a task that this process does not know; return the ids."""
    app = App(dsn)

    @app.task(name=task)
    async def anything(**_arguments: object) -> None: ...

    async with app:
        chosen = anything.options(**options)
        return [job.id for job in await app.enqueue_many([chosen.call(**call) for call in calls])]
