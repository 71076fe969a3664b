"""Calls of tasks that are not enqueued yet."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from aiopgq._store.foreign import check_connection
from aiopgq._words import options
from aiopgq._words.job import NewJob
from aiopgq._words.task import TaskDefinition
from aiopgq.errors import UsageError

__all__ = ["Call", "check_calls", "common_connection", "several"]

R_co = TypeVar("R_co", covariant=True)


# A bulk makes thousands, of what lives as long as the App: the collector would look at them for nothing.
class Call(msgspec.Struct, Generic[R_co], eq=False, gc=False):
    """A call of a task, checked and encoded, not yet enqueued; made by `task.call(…)`."""

    home: object
    definition: TaskDefinition
    job: NewJob
    connection: Any
    once: bool

    def __repr__(self) -> str:
        return f"<call of task {self.job.task!r}>"

    @property
    def id(self) -> UUID:
        """The id the job will have."""
        return self.job.id

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task

    @property
    def queue(self) -> str:
        """Its queue."""
        return self.job.queue

    @property
    def headers(self) -> dict[str, str]:
        """The headers the job will carry; `add_headers` adds to them."""
        return msgspec.json.decode(self.job.headers, type=dict[str, str]) if self.job.headers else {}

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Let the job carry more strings, for tracing and the like; of the same name, the new one stays.

        Raises:
            ConfigError: Not strings, or more than a job may carry.
        """
        merged = options.headers("headers", {**self.headers, **headers})
        self.job.headers = msgspec.json.encode(merged).decode() if merged else None


def several(calls: Iterable[Call[Any]]) -> Iterator[Call[Any]]:
    """Begin to read what `enqueue_many` was given.

    Raises:
        TypeError: It is one call, or nothing that can be read.
    """
    if isinstance(calls, Call) or not isinstance(calls, Iterable):
        raise TypeError(f"enqueue_many takes several calls made by task.call(…), such as a list, not {calls!r}.")

    return iter(calls)


def check_calls(home: object, calls: Sequence[Call[Any]]) -> None:
    """Check that a batch holds calls of one App's tasks and nothing else.

    Raises:
        TypeError: Something in it was not made by `task.call(…)`.
        UsageError: A call is one of another App's task.
    """
    for call in calls:
        if not isinstance(call, Call):
            if inspect.iscoroutine(call):
                call.close()
            raise TypeError(f"enqueue_many takes calls made by task.call(…), not {type(call).__name__}.")
        if call.home is not home:
            raise UsageError(f"Task {call.definition.name!r} belongs to another App; enqueue its calls there.")


def common_connection(calls: Sequence[Call[Any]], given: Any) -> Any:
    """Return the one connection a batch goes through, None for the App's own.

    Raises:
        UsageError: The calls were made with different connections.
        TypeError: The connection given is of no kind we know.
    """
    if given is not None:
        check_connection(given)
        return given
    connections = {id(call.connection): call.connection for call in calls}
    if len(connections) > 1:
        raise UsageError(
            "These calls were made with different connections, so one transaction cannot hold them all. "
            "Give enqueue_many(…, connection=…), or enqueue them apart."
        )

    return next(iter(connections.values()), None)
