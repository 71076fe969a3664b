"""Limits, order and pauses in the database; every method is one statement in a transaction of its own."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from aiopgq._store.fetch import Fetcher, fetch_whole
from aiopgq._store.statements import statement
from aiopgq._words.limit import Rule

__all__ = ["Limits", "QueueRow"]


class QueueRow(NamedTuple):
    """A queue: since when it is paused, its jobs by where they stand, who serves it, its limits."""

    queue: str
    paused_at: datetime | None
    ready: int
    waiting: int
    held: int
    running: int
    workers: int
    most_running: int | None
    rate: int | None
    burst: int | None
    per: float | None


class Limits:
    """The statements about limits and pauses, on one line or several."""

    def __init__(self, line: Fetcher) -> None:
        self._line = line
        self._schema: str = line.settings.schema

    async def _fetch(self, doing: str, name: str, *args: Any) -> list[Any]:
        return await fetch_whole(self._line, doing, statement(name, self._schema), *args)

    async def _value(self, doing: str, name: str, *args: Any) -> Any:
        [row] = await self._fetch(doing, name, *args)
        return row[0]

    async def declare(self, rules: Mapping[str, Rule], unlimited: Iterable[str]) -> None:
        """Say what limits tasks have, and which names have none."""
        await self._fetch("declare limits", "declare_limits", *_columns(rules), sorted(unlimited))

    async def limit_queues(self, rules: Mapping[str, Rule], unlimited: Iterable[str]) -> None:
        """Say what limits queues have, and which have none."""
        await self._fetch("limit queues", "limit_queues", *_columns(rules), sorted(unlimited))

    async def let_in_stranded(self) -> int:
        """Let in jobs outside whose key has room; return how many."""
        return int(await self._value("let jobs in", "let_in_stranded"))

    async def forget_gates(self, limit: int) -> int:
        """Delete gates that nobody needs; return how many."""
        return int(await self._value("forget unused gates", "forget_gates", limit))

    async def pause_queue(self, queue: str) -> bool:
        """Let no job of a queue be claimed; False if it was paused."""
        return bool(await self._value("pause a queue", "pause_queue", queue))

    async def resume_queue(self, queue: str) -> bool:
        """End the pause of a queue; False if it was not paused."""
        return bool(await self._value("resume a queue", "resume_queue", queue))

    async def pause_task(self, task: str) -> bool:
        """Let no job of a task be claimed; False if it was paused."""
        return bool(await self._value("pause a task", "pause_task", task))

    async def resume_task(self, task: str) -> bool:
        """End the pause of a task; False if it was not paused."""
        return bool(await self._value("resume a task", "resume_task", task))

    async def hold_paused(self, limit: int) -> int:
        """Take jobs of paused tasks out of the line; return how many."""
        return int(await self._value("hold jobs of paused tasks", "hold_paused", limit))

    async def free_resumed(self, limit: int) -> int:
        """Put jobs whose task is not paused any more back; return how many."""
        return int(await self._value("free jobs of resumed tasks", "free_resumed", limit))

    async def queues(self) -> list[QueueRow]:
        """List queues that have jobs, are served, are paused or have a limit."""
        return [QueueRow(*row) for row in await self._fetch("list queues", "queue_list")]

    async def paused_tasks(self) -> dict[str, datetime]:
        """List paused tasks, and since when they are."""
        return {row[0]: row[1] for row in await self._fetch("list paused tasks", "paused_tasks")}


def _columns(rules: Mapping[str, Rule]) -> list[list[Any]]:
    return [
        list(rules),
        [rule.running for rule in rules.values()],
        [rule.rate for rule in rules.values()],
        [rule.burst for rule in rules.values()],
        [rule.per for rule in rules.values()],
    ]
