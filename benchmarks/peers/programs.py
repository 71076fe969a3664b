"""The benchmark's hold on the programs of the peers."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

from benchmarks import raw
from benchmarks.peers.environments import ROOT, Unavailable, environment
from benchmarks.peers.redis_server import running_redis
from benchmarks.server import Server

__all__ = ["PEERS", "Contender", "Kind", "Program", "Trial", "invited"]

_DEADLINE: Final = 180.0


class Kind(NamedTuple):
    """What is known of a peer beforehand.

    Attributes:
        module: Its file in this folder, and of its requirements.
        name: How the table calls it.
        role: "ours", "floor" or "peer".
        redis: Its jobs are in Redis.
        bulk: It can enqueue many jobs in one call.
        least: The oldest Python it runs on.
    """

    module: str
    name: str
    role: str = "peer"
    redis: bool = False
    bulk: bool = True
    least: tuple[int, int] = (3, 11)


PEERS: Final = {
    kind.module: kind
    for kind in (
        Kind("ours", "aiopgq", "ours"),
        Kind("floor", "raw asyncpg", "floor"),
        Kind("pgqueuer", "PgQueuer"),
        Kind("procrastinate", "procrastinate"),
        Kind("chancy", "chancy"),
        Kind("oban", "oban", least=(3, 12)),
        Kind("arq", "arq (Redis)", redis=True, bulk=False),
    )
}


class Trial(NamedTuple):
    """A drain that was tried.

    Attributes:
        jobs: How many jobs the next one needs to last long enough.
        rate: Jobs a second.
    """

    jobs: int
    rate: float


class Program:
    """One process of a peer, spoken to over its stdin and stdout."""

    def __init__(self, name: str, process: Process) -> None:
        self._name = name
        self._process = process

    async def line(self) -> dict[str, Any]:
        """Read its next line.

        Raises:
            RuntimeError: It failed, ended, or said nothing for minutes.
        """
        assert self._process.stdout is not None  # noqa: S101  # it was started with a pipe
        try:
            async with asyncio.timeout(_DEADLINE):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"{self._name} said nothing for {_DEADLINE:.0f} s") from None
        if not line:
            raise RuntimeError(f"{self._name} ended with code {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(f"{self._name}: {answer['failed']}")
        return answer

    async def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """Give a command; return the answer."""
        assert self._process.stdin is not None  # noqa: S101  # it was started with a pipe
        self._process.stdin.write(json.dumps({"do": do, **options}).encode() + b"\n")
        return await self.line()

    async def stop(self) -> None:
        """Let it end; by force if it is stuck."""
        assert self._process.stdin is not None  # noqa: S101  # it was started with a pipe
        self._process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class Contender:
    """A peer that can be run here.

    Attributes:
        kind: What is known of it.
        versions: What its program says of itself.
        trials: What is known of its drains, for each number of processes and concurrency.
    """

    def __init__(self, kind: Kind, python: str, server: Server, redis: str | None) -> None:
        self.kind = kind
        self.versions = ""
        self.trials: dict[tuple[int, int], Trial] = {}
        self._python = python
        self._server = server
        self._redis = redis

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Lend a database that nobody has used, with the peer's tables in it."""
        async with AsyncExitStack() as stack:
            dsn = self._redis
            if dsn is None:
                dsn = await stack.enter_async_context(self._server.empty_database())
            async with self.programs(dsn, 1) as [program]:
                await program.ask("install")
            yield dsn

    @asynccontextmanager
    async def programs(self, dsn: str, count: int) -> AsyncIterator[list[Program]]:
        """Start processes and wait until all is imported."""
        async with AsyncExitStack() as stack:
            started = []
            for _ in range(count):
                process = await asyncio.create_subprocess_exec(
                    *(self._python, "-m", "benchmarks.peers.serve", self.kind.module, dsn),
                    cwd=ROOT,
                    stdin=PIPE,
                    stdout=PIPE,
                )
                program = Program(self.kind.name, process)
                stack.push_async_callback(program.stop)
                started.append(program)
            for program in started:
                told = await program.line()
                versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
                self.versions = f"{versions}, Python {told['python']}"
            yield started

    async def calm(self, dsn: str) -> None:
        """Leave the server with statistics and without a backlog of writes."""
        if self._redis is None:
            async with raw.connected(dsn) as connection:
                await connection.execute("ANALYZE")
                await connection.execute("CHECKPOINT")


@asynccontextmanager
async def invited(modules: Iterable[str], server: Server) -> AsyncIterator[list[Contender]]:
    """Make the environments of peers; those that cannot be run here are named with the reason and left out."""
    async with AsyncExitStack() as stack:
        contenders = []
        for module in modules:
            kind = PEERS[module]
            try:
                python = sys.executable if kind.role != "peer" else await environment(module, kind.least)
                redis = await stack.enter_async_context(running_redis()) if kind.redis else None
            except Unavailable as reason:
                print(f"{kind.name} is left out: {reason}", flush=True)
                continue
            contender = Contender(kind, python, server, redis)
            async with contender.database():
                print(f"{kind.name}: {contender.versions}", flush=True)
            contenders.append(contender)
        yield contenders
