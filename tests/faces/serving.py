"""A web server in a process of its own, as people run it, and what it leaves in the database."""

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx

__all__ = ["AIOHTTP", "EXAMPLES", "UVICORN", "Server", "environment", "left_in", "served"]

EXAMPLES = Path(__file__).parents[2] / "examples"
UVICORN = ("-m", "uvicorn", "--host", "127.0.0.1", "--port", "0")
AIOHTTP = ("-m", "aiohttp.web", "-H", "127.0.0.1", "-P", "0")
STARTING, ENDING = 40, 30


def environment(**settings):
    """Return the environment of a program that knows only these settings of ours."""
    ours = ("AIOPGQ_", "DATABASE_URL", "PG")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "PYTHONUNBUFFERED": "1", **settings}


class Server:
    """A server that runs, or has ended; `said` is all it wrote."""

    def __init__(self, process):
        self._process = process
        self._url = asyncio.get_running_loop().create_future()
        self.said = ""
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self):
        async for line in self._process.stdout:
            self.said += line.decode()
            if (
                found := re.search(r"running on (http://[\d.:]+)", line.decode(), re.IGNORECASE)
            ) and not self._url.done():
                self._url.set_result(found[1])

    async def url(self):
        """Wait until it serves and return where."""
        async with asyncio.timeout(STARTING):
            await asyncio.wait([self._url, self._listening], return_when=asyncio.FIRST_COMPLETED)
        assert self._url.done(), f"it does not serve:\n{self.said}"
        return self._url.result()

    async def end(self, number=signal.SIGTERM):
        """Send a signal, wait for the end and return the exit code and the seconds it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._process.send_signal(number)
        code = await self.ended()
        return code, loop.time() - began

    async def ended(self):
        """Wait for the end and return the exit code."""
        async with asyncio.timeout(ENDING):
            await self._listening
            return await self._process.wait()

    async def kill(self):
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listening
        self._url.cancel()


@asynccontextmanager
async def starting(*command, cwd, **settings):
    """Start a server, whether or not it will serve."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=cwd,
        env=environment(**settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    server = Server(process)
    try:
        yield server
    finally:
        await server.kill()


@asynccontextmanager
async def served(*command, cwd=EXAMPLES, **settings):
    """Start a server, and give it together with a client that speaks to it over real sockets."""
    async with (
        starting(*command, cwd=cwd, **settings) as server,
        httpx.AsyncClient(base_url=await server.url(), timeout=30) as client,
    ):
        yield server, client


async def left_in(dsn):
    """Tell what is unfinished in a database, which workers are alive, and how many connections of ours there are."""
    connection = await asyncpg.connect(dsn)
    try:
        jobs = await connection.fetch("SELECT status, attempts FROM aiopgq.jobs ORDER BY id")
        workers = await connection.fetchval("SELECT count(*) FROM aiopgq.workers WHERE dead_at IS NULL")
        connections = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'aiopgq %'"
        )
        return [tuple(job) for job in jobs], workers, connections
    finally:
        await connection.close()
