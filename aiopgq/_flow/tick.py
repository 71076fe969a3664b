"""Tick, beside the path: lets schedules fire.

Takes the schedules that are due by the clock of PostgreSQL, gives a job for each fire time. Any number of workers do
it: moving a schedule on and enqueuing its jobs is one transaction, and only the first one finds the schedule as it was.

If the process dies here, a schedule has fired or it has not, and another worker finds it due.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from aiopgq._store.patience import Patience
from aiopgq._store.schedules import Schedules
from aiopgq._words.clock import monotonic, uuid7
from aiopgq._words.schedule import DueSchedule, NewSchedule
from aiopgq.errors import ConfigError, StoreError, StoreUnavailable

__all__ = ["Ticker"]

log = logging.getLogger("aiopgq.tick")

_PASS: Final = 15.0
# Somebody else is at it, or a clock here runs a little ahead of PostgreSQL's.
_SHORTEST: Final = 0.02
_AT_ONCE: Final = 100
_TROUBLE: Final = 60.0


class Ticker:
    """The ticking of one worker.

    Args:
        schedules: The store.
        declared: What the code declares.
    """

    def __init__(self, schedules: Schedules, declared: Sequence[NewSchedule]) -> None:
        self._schedules = schedules
        self._to_write = list(declared)
        self._declared: list[str] = []
        self._troubled: dict[str, float] = {}
        self._patience = Patience(log, "look at schedules")

    async def run(self) -> None:
        """Tick whenever something is due, until cancelled."""
        while True:
            try:
                wait = await self.work()
            except StoreError as error:
                wait = self._patience.failed(error)
            else:
                self._patience.worked()
            await asyncio.sleep(wait)

    async def work(self) -> float:
        """Write what is declared, let fire what is due; return the seconds to wait.

        Raises:
            StoreUnavailable: PostgreSQL did not answer; the next pass does the rest.
            StoreError: It refuses.
        """
        while self._to_write:
            await self._write(self._to_write[0])
            self._to_write.pop(0)
        now = monotonic()
        self._troubled = {name: until for name, until in self._troubled.items() if until > now}
        while True:
            passed_over = list(self._troubled)
            found = await self._schedules.look(self._declared, passed_over)
            if not found.due:
                break
            fired = [await self._fire(one) for one in await self._schedules.due(passed_over, _AT_ONCE)]
            if not any(fired):
                return _SHORTEST
        latest = _PASS * random.uniform(1.0, 1.2)  # noqa: S311  # jitter

        return latest if found.next_in is None else min(latest, max(_SHORTEST, found.next_in))

    async def _write(self, new: NewSchedule) -> None:
        became = await self._schedules.write(new)
        if became == "made at run time":
            log.warning(
                "schedule %r is declared, and one of that name was made at run time: that one stays. Remove it "
                "(python -m aiopgq schedules remove), or give the declared one another name",
                new.name,
            )
            return
        self._declared.append(new.name)
        if became != "same":
            log.info("schedule %r %s: task %s, %s", new.name, became, new.job.task, new.timing)

    async def _fire(self, due: DueSchedule) -> bool:
        """Let one fire; True if this worker did, or the trouble with it was noted."""
        try:
            moments, next_at = due.plan()
            fired = await self._schedules.fire(due, next_at, [uuid7() for _ in moments], moments)
        except StoreUnavailable:
            raise
        except (ConfigError, StoreError) as error:
            # The others shall fire all the same.
            self._troubled[due.name] = monotonic() + _TROUBLE
            log.error("schedule %r cannot fire, trying again in a minute: %s", due.name, error)  # noqa: TRY400  # the message says it all
            return True
        if fired and moments:
            log.debug("schedule %r fired for %s", due.name, ", ".join(map(str, moments)))

        return fired
