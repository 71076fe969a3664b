"""What a peer is, and the JSON lines it speaks. Runs in every peer's environment: only the standard library and uvloop.

The program writes a line about itself when all is imported. Then a line in is a command, `{"do": name, ...}`, and a
line out its answer. A process told to `work` writes how many handlers have started, every few milliseconds, or the
moment of each one if `stamping`. At the end of its input it ends at once, so none outlives the benchmark.
"""

import abc
import asyncio
import json
import os
import platform
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from time import monotonic_ns, perf_counter, process_time
from typing import Any, ClassVar, Final, NamedTuple

import uvloop

__all__ = ["Peer", "Standing", "ran", "serve"]

_CHUNK: Final = 1000
_AT_ONCE: Final = 50
_TICK: Final = 0.01
_POLL: Final = 0.003

Answer = dict[str, Any]


class Standing(NamedTuple):
    """What the database says.

    Attributes:
        unfinished: Jobs that are not done.
        finished: Jobs that are done well; None if the peer keeps nothing of them.
    """

    unfinished: int
    finished: int | None


class Peer(abc.ABC):
    """One process's hold on a job queue in a database of its own.

    Args:
        dsn: The database.
    """

    packages: ClassVar[tuple[str, ...]]

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @abc.abstractmethod
    async def install(self) -> None:
        """Make the tables, as the peer documents it."""

    @abc.abstractmethod
    async def open(self, connections: int) -> None:
        """Make ready to enqueue, with so many connections where the peer has a pool."""

    @abc.abstractmethod
    async def enqueue(self, number: int) -> None:
        """Enqueue one job; return when it is committed."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue jobs in one call; a peer without such a call makes one for each, some at once."""
        for start in range(0, len(numbers), _AT_ONCE):
            await asyncio.gather(*(self.enqueue(number) for number in numbers[start : start + _AT_ONCE]))

    @abc.abstractmethod
    async def work(self, concurrency: int) -> None:
        """Run jobs for ever; each handler's first act is to call `ran`."""

    @abc.abstractmethod
    async def standing(self) -> Standing:
        """Look at the database."""


class _Tally:
    """Counts the handlers of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.stamping = False

    def ran(self) -> None:
        if self.stamping:
            _say({"at": monotonic_ns()})
        elif not self.count:
            self.first = monotonic_ns()
        self.count += 1


_tally: Final = _Tally()
# What a peer prints must not get among the answers.
_answers: Final = os.dup(1)

ran = _tally.ran


def serve(peer: Peer) -> None:
    """Take commands and give answers until the input ends."""
    os.dup2(2, 1)
    uvloop.run(_serve(peer))


def _say(answer: Answer) -> None:
    os.write(_answers, json.dumps(answer).encode() + b"\n")


async def _serve(peer: Peer) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    _say({"python": platform.python_version(), "versions": {name: version(name) for name in peer.packages}})
    while line := await commands.readline():
        options = json.loads(line)
        try:
            _say(await _COMMANDS[options.pop("do")](peer, **options))
        except Exception as failure:  # noqa: BLE001  # whatever it is, the benchmark is told
            _say(_failed(failure))
    os._exit(0)


def _failed(failure: BaseException) -> Answer:
    traceback.print_exception(failure)

    return {"failed": f"{type(failure).__name__}: {failure}"}


async def _install(peer: Peer) -> Answer:
    await peer.install()

    return {}


async def _open(peer: Peer, connections: int) -> Answer:
    await peer.open(connections)

    return {}


async def _preload(peer: Peer, jobs: int) -> Answer:
    for start in range(0, jobs, _CHUNK):
        await peer.enqueue_many(range(start, min(start + _CHUNK, jobs)))

    return {}


async def _enqueue(peer: Peer, callers: int, size: int, seconds: float) -> Answer:
    """Call for some seconds; the first calls, which prepare statements and connections, are not timed."""
    calls = 0

    async def call() -> None:
        if size == 1:
            await peer.enqueue(calls)
        else:
            await peer.enqueue_many(range(size))

    async def caller(until: float) -> None:
        nonlocal calls
        while perf_counter() < until:
            await call()
            calls += 1

    await asyncio.gather(*(call() for _ in range(callers)))
    began, worked = perf_counter(), process_time()
    await asyncio.gather(*(caller(began + seconds) for _ in range(callers)))
    elapsed, worked = perf_counter() - began, process_time() - worked
    jobs = calls * size

    return {"rate": jobs / elapsed, "cpu": worked / jobs, "jobs": jobs + callers * size}


async def _one(peer: Peer, number: int) -> Answer:
    began = monotonic_ns()
    await peer.enqueue(number)

    return {"began": began}


async def _work(peer: Peer, concurrency: int, stamping: bool) -> Answer:
    _tally.stamping = stamping

    async def work() -> None:
        try:
            await peer.work(concurrency)
        except BaseException as failure:  # noqa: BLE001  # whatever it is, the benchmark is told
            _say(_failed(failure))
        else:
            _say({"failed": "the worker stopped by itself"})

    async def report() -> None:
        told = 0
        began = process_time()
        while True:
            await asyncio.sleep(_TICK)
            if _tally.count != told:
                told = _tally.count
                _say({"ran": told, "first": _tally.first, "cpu": process_time() - began})

    _running.add(asyncio.create_task(work()))
    if not stamping:
        _running.add(asyncio.create_task(report()))

    return {}


_running: Final[set[asyncio.Task[None]]] = set()


async def _settled(peer: Peer) -> Answer:
    """Wait until no job is unfinished."""
    while (standing := await peer.standing()).unfinished:  # noqa: ASYNC110  # there is no event in another process
        await asyncio.sleep(_POLL)
    at = monotonic_ns()

    return {"at": at, "finished": standing.finished}


async def _standing(peer: Peer) -> Answer:
    return (await peer.standing())._asdict()


_COMMANDS: Final[dict[str, Callable[..., Awaitable[Answer]]]] = {
    "install": _install,
    "open": _open,
    "preload": _preload,
    "enqueue": _enqueue,
    "one": _one,
    "work": _work,
    "settled": _settled,
    "standing": _standing,
}
