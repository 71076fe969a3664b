"""What an App knows of tasks: its own, those of the routers it includes, and their old names."""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiopgq._words import options
from aiopgq._words.event import EVENTS, EventHandler, EventKind
from aiopgq._words.schedule import NewSchedule
from aiopgq._words.task import TaskDefinition, where_defined
from aiopgq.errors import ConfigError, TaskNameTaken, TaskNotIncluded
from aiopgq.router import Declares, Router
from aiopgq.schedules import Schedules, declared_schedules
from aiopgq.subscriber import Receives
from aiopgq.task import EnqueueHome, TaskCore

__all__ = ["Registry"]

_Handler = TypeVar("_Handler", bound=EventHandler)


class Registry(Declares, Receives):
    """The tasks of an App.

    Args:
        queue: The queue of tasks that name none.
        imports: Modules that declare tasks.
    """

    def __init__(self, *, queue: str, imports: Iterable[str]) -> None:
        super().__init__(queue=queue)
        if isinstance(imports, str):
            raise ConfigError("imports", f'takes several module names; write ["{imports}"].')
        self._imports = tuple(imports)
        self._cores: dict[str, TaskCore] = {}
        self._known: dict[str, TaskDefinition] = {}
        self._handlers: dict[EventKind, list[EventHandler]] = {}

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Make the tasks of a router tasks of this App.

        Args:
            router: The router; one App may include it once.
            prefix: Put before the names of its tasks, such as "mail.".

        Raises:
            TaskNameTaken: A task of that name is known already; nothing was included.
            ConfigError: The router is included already.
        """
        names = [options.name("task name", prefix + core.definition.name) for core in router.cores]
        for core in router.cores:
            if core.bound:
                raise ConfigError("include", f"task {core.definition.name!r} belongs to an App already.")
            self._check_free(core, prefix)
        for core, name in zip(router.cores, names, strict=True):
            core.definition.name = name
            self._declare(core)

    def _check_free(self, core: TaskCore, prefix: str = "") -> None:
        definition = core.definition
        for name in (prefix + definition.name, *definition.aliases):
            if (first := self._known.get(name)) is not None:
                raise TaskNameTaken(name, where_defined(first.function))

    def _declare(self, core: TaskCore) -> None:
        self._check_free(core)
        definition = core.definition
        self._cores[definition.name] = core
        for name in (definition.name, *definition.aliases):
            self._known[name] = definition
        core.bind(self._home())

    def import_tasks(self) -> None:
        """Import the modules named in `imports`; workers, the CLI and the testing kit do it by themselves."""
        for module in self._imports:
            importlib.import_module(module)

    @property
    def tasks(self) -> Mapping[str, TaskDefinition]:
        """The tasks known so far, by name."""
        return {name: core.definition for name, core in self._cores.items()}

    def task_named(self, name: str) -> Any:
        """Return the task of that name, for `options(…)` and `enqueue`.

        Raises:
            TaskNotIncluded: No such task is known; the message names the closest one.
        """
        definition = self._known.get(name)
        if definition is None:
            closest = difflib.get_close_matches(name, self._known, n=1)
            raise TaskNotIncluded(name, closest[0] if closest else None)

        return self._cores[definition.name].face

    def on(self, *kinds: EventKind) -> Callable[[_Handler], _Handler]:
        """Subscribe to what happens to jobs in the workers of this process, made from now on.

        The handler, `def` or `async def`, is given a `JobEvent` when its outcome is committed, or the run begins.
        Handlers are called one after the other, in the worker's event loop, beside the jobs: what they raise is
        logged, and a slow one delays other handlers only. An event is told once at most, and not at all if the process
        dies. Jobs cancelled before they ran, and those of workers that died, are told by nobody.

        Args:
            kinds: started, completed, retried, postponed, failed, cancelled.

        Raises:
            ConfigError: There is no such event.

        Example:
            >>> @jobs.on("failed")
            ... async def tell_somebody(event: JobEvent) -> None:
            ...     await post(f"{event.task} {event.job_id}: {event.reason}")
        """
        unknown = sorted({*map(str, kinds)} - {*EVENTS})
        if not kinds or unknown:
            raise ConfigError(
                "on(…)", f"takes some of {', '.join(EVENTS)}, not {unknown[0] if kinds else 'nothing'!r}."
            )

        def subscribe(handler: _Handler) -> _Handler:
            for kind in dict.fromkeys(kinds):
                self._handlers.setdefault(kind, []).append(handler)
            return handler

        return subscribe

    @property
    def schedules(self) -> Schedules:
        """The schedules in the database; the App must be open to use them."""
        return Schedules(self._home())

    def declared_schedules(self) -> list[NewSchedule]:
        """Return the schedules that code declares, for a worker to write.

        Raises:
            ConfigError: Two schedules have one name.
            ArgumentError: The arguments of one do not fit its task.
        """
        return declared_schedules(self._cores.values())

    def _home(self) -> EnqueueHome:
        raise NotImplementedError
