"""What an App gives its workers, and how they behave."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from uuid import UUID

from aiopgq._store.connection import ConnectSettings
from aiopgq._words.current import Around
from aiopgq._words.event import Handlers
from aiopgq._words.limit import Rule, escaped, rule_of
from aiopgq._words.schedule import NewSchedule
from aiopgq._words.slots import Slots
from aiopgq._words.task import TaskDefinition
from aiopgq.errors import ConfigError

__all__ = ["Equipment", "Manners", "Parentage"]


@dataclass(slots=True)
class Equipment:
    """What an App gives its workers.

    Attributes:
        connect: Where the database is.
        listen: Where notifications come from; a direct connection if `connect` goes through a pooler.
        tasks: The tasks known, by name and alias.
        schedules: Those that code declares.
        around: Goes around each run; None if nothing does.
        handlers: Who wants to hear what happens to jobs.
        slots: The queues served, and how much may run at once.
        state: Enters the App's state for one worker process.
        retention: Seconds finished jobs are kept; 0 keeps nothing.
        inbox_window: Seconds the inbox knows a message.
        max_result_bytes: The largest result kept.
        version: Of aiopgq, for the row of the worker.
        queue_rules: The limits of queues.
    """

    connect: ConnectSettings
    listen: ConnectSettings
    tasks: Mapping[str, TaskDefinition]
    schedules: Sequence[NewSchedule]
    around: Around | None
    handlers: Handlers
    slots: Slots
    state: Callable[[], AbstractAsyncContextManager[None]]
    retention: float
    inbox_window: float
    max_result_bytes: int
    version: str
    queue_rules: Mapping[str, Rule]

    def rules(self) -> tuple[dict[str, Rule], frozenset[str]]:
        """Return the limits of the tasks, by name, and the names that have none.

        Raises:
            ConfigError: Two tasks share a limit by its name, and say different things of it.
        """
        rules: dict[str, Rule] = {}
        unlimited: set[str] = set()
        for name, definition in self.tasks.items():
            restraint = definition.restraint
            if restraint is None or restraint.limit is None:
                unlimited.add(escaped(name))
                continue
            rule, known_as = rule_of(restraint.limit), restraint.limit_name(name)
            if rules.setdefault(known_as, rule) != rule:
                raise ConfigError(
                    f"task {name!r}, limit",
                    f"another task says something else of the limit {known_as!r}; say the same.",
                )

        return rules, frozenset(unlimited - rules.keys())


@dataclass(frozen=True, slots=True)
class Parentage:
    """The process that watches over a worker process, and declares its incarnations dead when it ends.

    Attributes:
        id: The parent; each `run` has one of its own.
        predecessors: Pids of worker processes that ended and may still own jobs.
        announce: Called with where the database is and whether finished jobs are kept, at each registration.
    """

    id: UUID
    predecessors: tuple[int, ...]
    announce: Callable[[ConnectSettings, bool], None]


@dataclass(frozen=True, slots=True)
class Manners:
    """How a worker behaves.

    Attributes:
        name: How it is called in logs and in the errors of jobs.
        burst: End when nothing is due.
        poll_interval: Seconds between looks while asleep.
        shutdown_grace: Seconds running jobs may take to finish at the end.
        job_log: Write a line for each completed job.
        parent: The process that watches over it, if there is one; then a handler that cannot be stopped when
            the lease is over ends the process.
        lease: Seconds a silent worker keeps its jobs.
        beat_interval: Seconds between beats.
        hang_limit: Seconds the event loop may be blocked before the worker gives itself up.
    """

    name: str
    burst: bool
    poll_interval: float
    shutdown_grace: float
    job_log: bool
    parent: Parentage | None
    lease: float
    beat_interval: float
    hang_limit: float
