"""What the calls of a task with the same options have in common, worked out once and not for each of a thousand."""

from typing import Any, Protocol
from uuid import UUID

import msgspec

from aiopgq._words.clock import uuid7
from aiopgq._words.job import NewJob
from aiopgq._words.limit import Restraint
from aiopgq._words.options import JobOptions, Unset
from aiopgq._words.task import TaskDefinition
from aiopgq._words.unique import Unique
from aiopgq.call import Call
from aiopgq.errors import ArgumentError

__all__ = ["Terms"]


class TermsHome(Protocol):
    """What it needs of its App."""

    @property
    def max_args_bytes(self) -> int: ...


class Terms:
    """The options of a task and those of an `options(…)` on it, as the rows of its calls will have them.

    Args:
        home: The App of the task, which knows its full name.
        definition: The task.
        chosen: What goes before what the task says.

    Raises:
        ArgumentError: A key for the limit of a task that has none.
    """

    __slots__ = (
        "_behind",
        "_chosen",
        "_definition",
        "_home",
        "_id",
        "_max_args_bytes",
        "_queue",
        "_restraint",
        "_unique",
    )

    def __init__(self, home: TermsHome, definition: TaskDefinition, chosen: JobOptions) -> None:
        timeout = chosen.timeout
        self._home = home
        self._max_args_bytes = home.max_args_bytes
        self._definition = definition
        self._chosen = chosen
        self._id: UUID | None = chosen.id
        self._queue = chosen.queue or definition.queue
        self._behind = (
            definition.priority if chosen.priority is None else chosen.priority,
            chosen.delay,
            chosen.run_at,
            chosen.max_attempts or definition.max_attempts,
            # NULL leaves it to the task when the job runs; zero in the row means none.
            None if isinstance(timeout, Unset) else timeout or 0.0,
            msgspec.json.encode(chosen.headers).decode() if chosen.headers else None,
        )
        self._restraint: Restraint | None = definition.restraint
        self._unique: Unique | None = definition.unique if isinstance(chosen.unique, Unset) else chosen.unique
        if chosen.limit is not None and (self._restraint is None or self._restraint.limit is None):
            reason = "the task has no limit, so there is nothing to give a key for."
            raise ArgumentError(definition.name, "limit", reason)

    def call(self, connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        """Check and encode a call; nothing is sent.

        Raises:
            ArgumentError: The call does not fit the task.
        """
        definition = self._definition
        encoded = definition.codec.encode(args, kwargs, self._max_args_bytes)
        job = NewJob(self._id or uuid7(), self._queue, definition.name, encoded, *self._behind)
        if self._restraint is not None:
            job.limit_key, job.order_key = self._restraint.keys(definition.name, self._chosen.limit, args, kwargs)
            job.order_blocks = self._restraint.blocks
        if self._unique is not None:
            job.unique = self._unique.of(definition.name, definition.function, encoded, args, kwargs)

        return Call(self._home, definition, job, connection, once=self._id is not None)
