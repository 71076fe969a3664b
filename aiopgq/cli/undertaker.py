"""What a parent does when a worker process of its has died: it declares the incarnations dead, so their jobs go back.

It knows that the process has ended, so nothing is to be waited for: no lease, no observation.
"""

import asyncio
import logging
from typing import Final
from uuid import UUID

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.workers import Workers
from aiopgq._words.counted import counted
from aiopgq.cli.orders import Whereabouts
from aiopgq.errors import AiopgqError

__all__ = ["declare_dead"]

log = logging.getLogger("aiopgq.cli")

_TRIES: Final = 3
_PAUSE: Final = 1.0


def declare_dead(whereabouts: Whereabouts, parent: UUID, pid: int) -> None:
    """Declare the incarnations of a process dead and give their jobs back, in a thread of its own.

    If the database cannot be reached, the next worker process does it, or the others when the lease is over.
    """
    asyncio.run(_declare(whereabouts, parent, pid))


async def _declare(whereabouts: Whereabouts, parent: UUID, pid: int) -> None:
    line = Line(ConnectSettings(whereabouts.dsn, whereabouts.schema, statement_cache_size=0), "undertaker")
    try:
        for _ in range(_TRIES):
            try:
                taken = await Workers(line).bury(parent, pid, keep=whereabouts.keep)
            except AiopgqError as error:
                log.debug("cannot declare worker process %d dead yet: %s", pid, error)
                await asyncio.sleep(_PAUSE)
            else:
                if taken:
                    log.warning("put back: %s of worker process %d, which is dead", counted(taken, "job"), pid)
                return
    finally:
        await line.close()
