"""Gates, beside the path: lets jobs in that a limit, an order or a pause keeps out of the line.

Takes what the tasks of a worker say about limits, and declares it before the first claim. The statements by which jobs
leave let in those that wait for them; here is the net below, for a process that died between two statements, and for
handlers that settled in a transaction of their own.

If the process dies here, another worker's next pass does the rest.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Final

from aiopgq._store.limits import Limits
from aiopgq._store.patience import Patience, comes
from aiopgq._words.limit import Rule
from aiopgq.errors import StoreError

__all__ = ["Gatekeeper"]

log = logging.getLogger("aiopgq.gates")

_PASS: Final = 5.0
_BATCH: Final = 5000
_FORGET_EVERY: Final = 60


class Gatekeeper:
    """Keeps the gates for one worker process.

    Args:
        limits: The store, on a line of its own.
        rules: The limits of its tasks, by name.
        unlimited: Its tasks that have none.
        queues: The limits of queues that the App declares.
        unlimited_queues: The queues it serves that have none.

    Attributes:
        entered: How many jobs its passes have let in.
    """

    def __init__(
        self,
        limits: Limits,
        rules: Mapping[str, Rule],
        unlimited: frozenset[str],
        queues: Mapping[str, Rule],
        unlimited_queues: frozenset[str],
    ) -> None:
        self._limits = limits
        self._rules = rules
        self._unlimited = unlimited
        self._queues = queues
        self._unlimited_queues = unlimited_queues
        self._asked = asyncio.Event()
        self._turn = asyncio.Lock()
        self._passes = 0
        self.entered = 0
        self._patience = Patience(log, "let jobs in")

    async def open(self) -> None:
        """Declare the limits.

        Raises:
            StoreError: PostgreSQL refused, or did not answer.
        """
        await self._limits.declare(self._rules, self._unlimited)
        await self._limits.limit_queues(self._queues, self._unlimited_queues)

    def ask(self) -> None:
        """Look soon: a job with a limit or an order has left in a transaction that let nobody in."""
        self._asked.set()

    async def run(self) -> None:
        """Do a pass now and then, and when asked, until cancelled."""
        while True:
            wait = _PASS * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
            try:
                await self.work()
            except StoreError as error:
                wait = self._patience.failed(error)
            else:
                self._patience.worked()
            await comes(self._asked, wait)

    async def work(self) -> None:
        """Do one pass; whoever comes while one is under way waits for its end and does another."""
        async with self._turn:
            self._asked.clear()
            while await self._limits.hold_paused(_BATCH) == _BATCH:
                pass
            while freed := await self._limits.free_resumed(_BATCH):
                self.entered += freed
            self.entered += await self._limits.let_in_stranded()
            self._passes += 1
            if self._passes % _FORGET_EVERY == 0:
                await self._limits.forget_gates(_BATCH)
