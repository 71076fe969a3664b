"""Real worker processes: a program that runs one, and the benchmark's hold on it.

    python -m benchmarks.workers DSN --concurrency 100 [--burst] [--limited]

The program says "ready" when all is imported, and starts claiming when it reads a line. At the end of its input it
stops, so none outlives the benchmark. At its own end it says how much CPU time it used since it started claiming.
"""

import argparse
import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import process_time

import uvloop

from aiopgq.cli.child import settle_down
from benchmarks.load import declare, declare_limited

__all__ = ["WorkerProcess", "started_process", "started_workers"]


class WorkerProcess:
    """A process the benchmark talks to over its stdin and stdout."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def line(self) -> list[str]:
        """Read the words of its next line.

        Raises:
            RuntimeError: It ended instead.
        """
        assert self._process.stdout is not None  # noqa: S101  # it was started with a pipe
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with code {await self._process.wait()}")
        return line.decode().split()

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None  # noqa: S101  # it was started with a pipe
        self._process.stdin.write(b"go\n")

    async def cpu_seconds(self) -> float:
        """Wait for its end; return the CPU time it used since it began."""
        _, seconds = await self.line()
        return float(seconds)

    async def stop(self) -> None:
        """Tell it to stop, and wait for its end."""
        assert self._process.stdin is not None  # noqa: S101  # it was started with a pipe
        self._process.stdin.close()
        await self._process.wait()


@asynccontextmanager
async def started_process(module: str, *options: str) -> AsyncIterator[WorkerProcess]:
    """Start a module of the benchmarks as a program of its own and wait until it is ready."""
    process = WorkerProcess(
        await asyncio.create_subprocess_exec(sys.executable, "-m", module, *options, stdin=PIPE, stdout=PIPE)
    )
    try:
        await process.line()
        yield process
    finally:
        await process.stop()


@asynccontextmanager
async def started_workers(
    dsn: str, concurrency: int, *, processes: int = 1, burst: bool = False, limited: bool = False
) -> AsyncIterator[list[WorkerProcess]]:
    """Start worker processes that claim as soon as they are told to, and know the tasks with limits or do not."""
    flags = [f"--{flag}" for flag, given in (("burst", burst), ("limited", limited)) if given]
    options = [dsn, "--concurrency", str(concurrency), *flags]
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(started_process("benchmarks.workers", *options)) for _ in range(processes)
        ]


async def _work(dsn: str, concurrency: int, *, burst: bool, limited: bool) -> None:
    told = asyncio.Event()
    began = 0.0

    def read() -> None:
        if not os.read(0, 16):
            worker.stop()
            asyncio.get_running_loop().remove_reader(0)
        told.set()

    @asynccontextmanager
    async def gate() -> AsyncIterator[None]:
        nonlocal began
        print("ready", flush=True)
        await told.wait()
        began = process_time()
        yield

    jobs = declare(dsn, gate).jobs
    if limited:
        declare_limited(jobs)
    worker = jobs.worker(concurrency=concurrency, burst=burst, job_log=False)
    asyncio.get_running_loop().add_reader(0, read)
    await worker.run()
    asyncio.get_running_loop().remove_reader(0)
    print("cpu", process_time() - began, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--limited", action="store_true")
    chosen = parser.parse_args()
    # As the processes of `run` do.
    settle_down()
    uvloop.run(_work(chosen.dsn, chosen.concurrency, burst=chosen.burst, limited=chosen.limited))
