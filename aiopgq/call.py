"""Calls of tasks that are not enqueued yet."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from aiopgq._store.foreign import check_connection
from aiopgq._words.job import NewJob
from aiopgq._words.task import TaskDefinition
from aiopgq.errors import UsageError

__all__ = ["Call", "common_connection"]

R_co = TypeVar("R_co", covariant=True)


class Call(Generic[R_co]):
    """A call of a task, checked and encoded, not yet enqueued; made by `task.call(…)`."""

    __slots__ = ("connection", "definition", "job", "once")

    def __init__(self, definition: TaskDefinition, job: NewJob, connection: Any, *, once: bool) -> None:
        self.definition = definition
        self.job = job
        self.connection = connection
        self.once = once


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
