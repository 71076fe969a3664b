"""A handle on a job: look at it, wait for it, cancel it, from any process that knows its id."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Generic, Literal, Protocol, TypeVar, cast
from uuid import UUID

import msgspec

from aiopgq._store.foreign import in_transaction
from aiopgq._store.jobs import Jobs, Outstanding
from aiopgq._words import options
from aiopgq._words.codec import Codec
from aiopgq._words.job import JobInfo
from aiopgq._words.progress import Progress
from aiopgq.errors import JobCancelled, JobFailed, JobNotFound, NotYetCommitted, ResultNotKept, ResultTimeout

__all__ = ["JobHandle"]

R_co = TypeVar("R_co", covariant=True)


class Home(Protocol):
    """What a handle needs of its App."""

    @property
    def keeps_results(self) -> bool: ...

    def store(self, doing: str) -> Jobs: ...

    async def outcome(self, job_id: UUID, seconds: float | None) -> Outstanding | None: ...

    def watch(self, job_id: UUID) -> AsyncGenerator[Progress, None]: ...


class JobHandle(Generic[R_co]):
    """A job somebody enqueued; made by `enqueue`, `task.handle(id)` or `jobs.handle(id)`.

    Attributes:
        id: The job's id; with it, any process can make the same handle again.
        existing: The job was there before, with this id or with the unique key of the call.
        dropped: There is no job: its queue was full, and drops what is too much.
    """

    __slots__ = ("_codec", "_connection", "_home", "dropped", "existing", "id")

    def __init__(
        self,
        home: Home,
        job_id: UUID,
        codec: Codec | None,
        *,
        existing: bool = False,
        dropped: bool = False,
        connection: Any = None,
    ) -> None:
        self.id = job_id
        self.existing = existing
        self.dropped = dropped
        self._home = home
        self._codec = codec
        self._connection = connection

    def __repr__(self) -> str:
        return f"JobHandle({str(self.id)!r})"

    async def info(self) -> JobInfo:
        """Look at the job.

        Raises:
            JobNotFound: It was never committed, or is past its retention.
            AppNotOpen: The App is not open.
            StoreUnavailable: PostgreSQL did not answer.
        """
        info = await self._home.store("look at a job").info(self.id)
        if info is None:
            self._check_committed()
            raise JobNotFound(self.id)

        return info

    async def result(self, timeout: float | None = 60) -> R_co:  # noqa: ASYNC109  # part of the face
        """Wait for the job and return what its task returned.

        Cancelling the wait does not touch the job.

        Args:
            timeout: Seconds to wait; None for ever.

        Raises:
            JobFailed: It is a dead letter; `errors` holds an entry for each attempt.
            JobCancelled: It was cancelled.
            ResultTimeout: It is not done yet.
            JobNotFound: It was never committed, or is past its retention.
            ResultNotKept: It is done and finished jobs are not kept.
            NotYetCommitted: The transaction that enqueues it is still open.
            AppNotOpen: The App is not open.
            StoreUnavailable: PostgreSQL did not answer.
        """
        if timeout is not None:
            timeout = options.seconds("result(timeout=…)", timeout)
        found = await self._home.outcome(self.id, timeout)
        if found is None:
            self._check_committed()
            if not self._home.keeps_results:
                raise ResultNotKept(self.id)
            raise JobNotFound(self.id)
        if found.status == "failed":
            raise JobFailed(self.id, found.last_error, found.errors)
        if found.status == "cancelled":
            raise JobCancelled(self.id, found.last_error)
        if found.status != "completed":
            raise ResultTimeout(self.id, timeout or 0, found.status)
        value = _untyped(found.result) if self._codec is None else self._codec.decode_result(found.result)

        return cast("R_co", value)

    async def progress(self) -> AsyncIterator[Progress]:
        """Watch the job: give how far it is, now and whenever that has changed, until it has ended.

        The last one is final, and then the loop ends, however the job ended; `result()` tells more. Reports are written
        about once a second and looked at every half second, by one statement for all who watch in this process; what
        came in between is passed over. A job that runs again begins anew.

        Raises:
            JobNotFound: It was never committed, or is past its retention.
            NotYetCommitted: The transaction that enqueues it is still open.
            AppNotOpen: The App is not open, or was closed meanwhile.
            StoreUnavailable: PostgreSQL did not answer for ten seconds.

        Example:
            >>> async def follow(job: JobHandle[str]) -> None:
            ...     async for update in job.progress():
            ...         print(update.status, update.percent, update.stage)
        """
        there = False
        async with aclosing(self._home.watch(self.id)) as updates:
            async for update in updates:
                there = True
                yield update
        if not there:
            self._check_committed()
            raise JobNotFound(self.id)

    async def cancel(self) -> Literal["cancelled", "requested", "finished"]:
        """Cancel the job: a pending one at once, a claimed or running one by asking its worker.

        Returns:
            cancelled, requested (its worker will see it), or finished (too late).

        Raises:
            JobNotFound: It was never committed, or is past its retention.
            AppNotOpen: The App is not open.
            StoreUnavailable: PostgreSQL did not answer.
        """
        outcome = await self._home.store("cancel a job").cancel(self.id)
        if outcome == "not found":
            self._check_committed()
            raise JobNotFound(self.id)

        return cast("Literal['cancelled', 'requested', 'finished']", outcome)

    def _check_committed(self) -> None:
        if self.dropped:
            raise JobNotFound(self.id, "its queue was full, and dropped it")
        if self._connection is None:
            return
        if in_transaction(self._connection):
            raise NotYetCommitted(self.id)
        self._connection = None


def _untyped(result: str | None) -> Any:
    return None if result is None else msgspec.json.decode(result)
