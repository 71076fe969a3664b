"""A worker as people look at it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

__all__ = ["WorkerInfo"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One incarnation of a worker; each start is a new one.

    Attributes:
        id: Its id, never used again.
        name: How it is called; several may have one name.
        host: Where it runs.
        pid: Its process there; 0 if it did not say.
        version: Of aiopgq; `sql` for a worker in another language.
        queues: The queues it serves.
        tasks: The tasks it knows.
        concurrency: How many jobs it runs at once.
        jobs: How many it has just now.
        started_at: When it registered.
        heartbeat_at: When it beat last.
        silent_for: Seconds since then.
        lease: Seconds it may be silent before others take its jobs.
        draining: It claims no more, or was asked not to.
        ended_at: When it ended or was declared dead; None while it lives.
    """

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: list[str]
    tasks: list[str]
    concurrency: int
    jobs: int
    started_at: datetime
    heartbeat_at: datetime
    silent_for: float
    lease: float
    draining: bool
    ended_at: datetime | None

    @property
    def status(self) -> Literal["working", "draining", "silent", "ended"]:
        """In one word: silent means for longer than its lease, so that others may take its jobs."""
        if self.ended_at is not None:
            return "ended"
        if self.silent_for > self.lease:
            return "silent"
        return "draining" if self.draining else "working"
