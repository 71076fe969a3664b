"""A Redis of the benchmark's own, as durable as the PostgreSQL beside it: every write is synced to its file."""

import asyncio
import shutil
import socket
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.peers.environments import Unavailable

__all__ = ["running_redis"]

_DEADLINE: Final = 10.0


@asynccontextmanager
async def running_redis() -> AsyncIterator[str]:
    """Start one on a free port; yield its address.

    Raises:
        Unavailable: There is no `redis-server` here, or it did not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("there is no redis-server on the PATH")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="aiopgq-bench-redis-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
            stdout=DEVNULL,
        )
        try:
            await _answers(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            await process.wait()


async def _answers(port: int) -> None:
    try:
        async with asyncio.timeout(_DEADLINE):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return
    except TimeoutError:
        raise Unavailable(f"redis-server did not answer within {_DEADLINE:.0f} s") from None
