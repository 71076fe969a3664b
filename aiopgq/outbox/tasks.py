"""Publish to tasks: each event becomes a job of every task that subscribed to its type."""

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, Protocol
from uuid import uuid5

from aiopgq._words.outbox_event import Event
from aiopgq.call import Call
from aiopgq.errors import BrokerUnavailable, StoreUnavailable
from aiopgq.handle import JobHandle
from aiopgq.outbox.publisher import Outcomes
from aiopgq.task import Task, ThreadTask

__all__ = ["TasksPublisher"]


class _App(Protocol):
    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[JobHandle[Any]]: ...


class TasksPublisher:
    """Enqueues a job for every task that subscribed to the type of an event.

    The task takes the payload as its only argument, as the type it is annotated with. The event is in the headers
    of the job (`current_job().headers`): event-id, event-type, aggregate-type, aggregate-id, and those it has itself.
    A job's id follows from event and task, so an event that is published twice is enqueued once, as long as finished
    jobs are kept. Jobs run concurrently: what leaves the outbox in order need not run in order.

    Args:
        jobs: The App of the tasks.
        subscriptions: The tasks of each event type; "*" is every type.

    Example:
        >>> jobs.outbox.relay(TasksPublisher(jobs, {"OrderPlaced": [send_receipt, reserve_stock]}))
    """

    name = "the queue"

    def __init__(
        self, jobs: _App, subscriptions: Mapping[str, Sequence[Task[..., Any] | ThreadTask[..., Any]]]
    ) -> None:
        self._jobs = jobs
        self._subscriptions = {kind: list(tasks) for kind, tasks in subscriptions.items()}

    async def publish(self, events: Sequence[Event], /) -> Outcomes:
        """Publish events; see `Publisher`.

        Raises:
            BrokerUnavailable: The broker takes nothing now.
        """
        outcomes: list[BaseException | None] = []
        calls: list[Call[Any]] = []
        for event in events:
            try:
                calls += self._calls(event)
            except Exception as error:  # noqa: BLE001  # the payload does not fit the task's own types
                outcomes.append(error)
            else:
                outcomes.append(None)
        try:
            await self._jobs.enqueue_many(calls)
        except StoreUnavailable as error:
            raise BrokerUnavailable(self.name, str(error)) from error

        return outcomes

    def _calls(self, event: Event) -> list[Call[Any]]:
        headers = {
            **event.headers,
            "event-id": str(event.event_id),
            "event-type": event.event_type,
            "aggregate-type": event.aggregate_type,
            "aggregate-id": event.aggregate_id,
        }
        tasks = [*self._subscriptions.get(event.event_type, ()), *self._subscriptions.get("*", ())]

        return [_call(task, event, headers) for task in tasks]


def _call(task: Task[..., Any] | ThreadTask[..., Any], event: Event, headers: Mapping[str, str]) -> Call[Any]:
    definition = task._task.definition  # noqa: SLF001  # the codec is not for users
    first = next(iter(signature(definition.function).parameters))
    args, kwargs = definition.codec.decode(f'{{"{first}":{event.payload}}}')

    return task.options(id=uuid5(event.event_id, task.name), headers=headers).call(*args, **kwargs)
