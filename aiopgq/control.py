"""What an App says about whole queues and tasks: pauses, and limits of queues; and who looks."""

from collections.abc import Mapping

from aiopgq._store.jobs import Jobs
from aiopgq._words import options
from aiopgq._words.limit import Limit, Rule, rule_of
from aiopgq.errors import ConfigError
from aiopgq.inspector import Inspector

__all__ = ["Control"]


class Control:
    """Looks after queues and tasks; a part of the App."""

    _queue_rules: dict[str, Rule] | None = None

    def limit_queue(self, queue: str, limit: Limit) -> None:
        """Limit a queue as a whole, over all workers; said before workers start.

        Args:
            queue: The queue.
            limit: How many of its jobs run at once, or start in a period. It has no key.

        Raises:
            ConfigError: An option cannot be used.

        Example:
            >>> jobs.limit_queue("mail", Limit(rate=10, per=1))
        """
        if limit.key is not None or limit.name is not None:
            raise ConfigError(f"queue {queue!r}, limit", "a queue is limited as a whole: without key= and name=.")
        self._queue_rules = {**self.queue_rules, options.name("queue", queue): rule_of(limit)}

    @property
    def queue_rules(self) -> Mapping[str, Rule]:
        """The limits of queues."""
        return self._queue_rules or {}

    async def pause(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Let no further job of a queue or a task begin, on any worker, until it is resumed; running ones go on.

        The pause is in the database: it outlives restarts, and holds from the next claim of each worker on. Jobs
        may be enqueued meanwhile; they wait.

        Args:
            queue: The queue.
            task: The name of the task; give one of both.

        Returns:
            False if it was paused already.

        Raises:
            UsageError: Neither or both were given.
            AppNotOpen: The App is not open.
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await Inspector(self.store("pause")).pause(queue=queue, task=task)

    async def resume(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """End a pause, and wake the workers.

        Args:
            queue: The queue.
            task: The name of the task; give one of both.

        Returns:
            False if it was not paused.

        Raises:
            UsageError: Neither or both were given.
            AppNotOpen: The App is not open.
            StoreUnavailable: PostgreSQL did not answer.
        """
        return await Inspector(self.store("resume")).resume(queue=queue, task=task)

    @property
    def inspector(self) -> Inspector:
        """Looks and mends.

        Raises:
            AppNotOpen: The App is not open.
        """
        return Inspector(self.store("inspect jobs"))

    def store(self, doing: str) -> Jobs:
        """Return the store of the opened App.

        Raises:
            AppNotOpen: It is not open.
        """
        raise NotImplementedError
