"""Enqueue, step 1: a call becomes a row.

Takes new jobs from many callers, gives each his answer when *his* row is committed. Self-clocking: with nothing
in flight a batch leaves at once, and what arrives while it is under way goes together next; so one caller waits
for nobody, and fifty share a commit. Many calls of one caller go part by part, in one transaction.

If the process dies here, rows that were answered are committed; of the others each is there or is not.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from aiopgq._store.connection import Lines
from aiopgq._store.jobs import Jobs
from aiopgq._store.parts import Parts
from aiopgq._store.trouble import NotSent
from aiopgq._words.batch import moderate
from aiopgq._words.clock import monotonic
from aiopgq._words.counted import counted
from aiopgq._words.job import NewJob
from aiopgq._words.unique import Standing
from aiopgq.errors import EnqueueUnknown, RowRefused, StoreError, StoreUnavailable

__all__ = ["DEADLINE", "Attempt", "Batcher", "insert", "pour"]

DEADLINE: Final = 10.0
_PAUSE: Final = 0.2
# Jobs a second that even a slow server inserts in bulk: a large batch may take longer than silence may.
_SLOWEST: Final = 10_000


class _Call(NamedTuple):
    job: NewJob
    answer: asyncio.Future[None]
    deadline: float


class Batcher:
    """Gathers the enqueue calls of one App.

    Args:
        jobs: The store, on a line of its own.
        keep: Whether finished jobs are kept; without them a lost commit cannot be told from a finished job.
    """

    def __init__(self, jobs: Jobs, *, keep: bool) -> None:
        self._jobs = jobs
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Call] = []
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, job: NewJob) -> None:
        """Insert one job; return when it is committed. Cancelling the caller does not undo the row.

        Raises:
            RowRefused: PostgreSQL cannot store it; other jobs of its batch are not affected.
            StoreUnavailable: Not committed as far as we know, after ten seconds; safe to repeat with its id.
            EnqueueUnknown: The commit's answer was lost and finished jobs are not kept.
        """
        answer: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(_Call(job, answer, monotonic() + DEADLINE))
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())
        await answer

    async def finish(self) -> None:
        """Wait until everything that was added has its answer."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self) -> None:
        try:
            while self._waiting:
                taken = moderate(self._waiting, _size)
                batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
                try:
                    await self._write(batch, once=False)
                except Exception as error:  # noqa: BLE001  # whatever it is, each caller is told
                    _answer(batch, lambda _, error=error: error)  # type: ignore[misc]  # mypy has no type for the default
        finally:
            self._flushing = None

    async def _write(self, batch: Sequence[_Call], *, once: bool) -> None:
        """Write a batch until each call has its answer; `once` when an earlier try may have been committed."""
        trouble: Exception | None = None
        while batch := self._unexpired(batch, trouble):
            try:
                # The first of the batch has waited longest; nobody waits longer than he was told.
                async with asyncio.timeout(batch[0].deadline - monotonic()):
                    await self._jobs.enqueue([call.job for call in batch], once=once)
            except RowRefused as error:
                await self._find_culprit(batch, error, once=once)
                return
            except (StoreUnavailable, TimeoutError) as error:
                if not isinstance(error, NotSent):
                    if not self._keep:
                        _answer(batch, lambda call: EnqueueUnknown(call.job.id))
                        return
                    once = True
                trouble = _telling(trouble, error)
                await asyncio.sleep(_PAUSE)
            else:
                _answer(batch, lambda _: None)
                return

    async def _find_culprit(self, batch: Sequence[_Call], error: RowRefused, *, once: bool) -> None:
        if len(batch) == 1:
            _answer(batch, lambda _: error)
            return
        middle = len(batch) // 2
        await self._write(batch[:middle], once=once)
        await self._write(batch[middle:], once=once)

    def _unexpired(self, batch: Sequence[_Call], trouble: Exception | None) -> Sequence[_Call]:
        """Answer the calls that have waited too long, here and in the next batch; return the rest."""
        now = monotonic()
        # The first has waited longest.
        if batch and batch[0].deadline >= now:
            return batch
        _answer(
            [call for call in (*batch, *self._waiting) if call.deadline < now],
            lambda call: _unavailable("enqueue a job", call.job.id, trouble),
        )
        self._waiting = [call for call in self._waiting if call.deadline >= now]

        return [call for call in batch if call.deadline >= now]


def _size(call: _Call) -> int:
    return len(call.job.args) + len(call.job.headers or "")


def _telling(before: Exception | None, error: Exception) -> Exception:
    """Return the trouble that tells more: that the time was up in the middle of the last try is no reason."""
    return before if before is not None and isinstance(error, TimeoutError) else error


def _unavailable(doing: str, job_id: UUID, trouble: Exception | None) -> StoreUnavailable:
    # A server that is full or read-only says so; whoever is told only "unavailable" looks at the network.
    said = trouble.doing if isinstance(trouble, StoreUnavailable) else doing
    error = StoreUnavailable(said, job_id)
    error.__cause__ = trouble

    return error


def _answer(batch: Sequence[_Call], verdict: Callable[[_Call], Exception | None]) -> None:
    for call in batch:
        # A caller that was cancelled has left; his row stays.
        if call.answer.done():
            continue
        error = verdict(call)
        if error is None:
            call.answer.set_result(None)
        else:
            call.answer.set_exception(error)


class Attempt(NamedTuple):
    """A try at a batch that failed: for how many seconds PostgreSQL was silent, and whether it may be committed."""

    silence: float = 0.0
    maybe_committed: bool = False


async def pour(lines: Lines, parts: Iterable[Sequence[NewJob]]) -> Attempt | None:
    """Insert jobs with new ids and without keys, part by part as they are made, in one transaction.

    Args:
        lines: Where to.
        parts: Read one after the other; what it raises rolls back, and is raised.

    Returns:
        None when all are committed; otherwise what `insert` has to know to go on.
    """
    writing = Parts(lines)
    try:
        async with asyncio.timeout(DEADLINE) as silence:
            await writing.write(_paced(parts, silence))
    except TimeoutError:
        return Attempt(DEADLINE, writing.committing)
    except StoreError as error:
        return Attempt(0.0, writing.committing and isinstance(error, StoreUnavailable))

    return None


def _paced(parts: Iterable[Sequence[NewJob]], silence: asyncio.Timeout) -> Iterator[Sequence[NewJob]]:
    """Give PostgreSQL its time anew for each part, however long that took to make, and for the end."""
    coming = iter(parts)
    while True:
        try:
            part = next(coming, None)
        finally:
            silence.reschedule(asyncio.get_running_loop().time() + DEADLINE)
        if part is None:
            return
        yield part


async def insert(
    jobs: Jobs, batch: Sequence[NewJob], *, once: bool, keep: bool, before: Attempt | None = None
) -> list[Standing]:
    """Insert a batch in one transaction, all or none; return the job that stands for each.

    Args:
        jobs: Where to.
        batch: The jobs.
        once: Whether some of them may be known.
        keep: Whether finished jobs are kept.
        before: The try that failed, if there was one.

    Raises:
        RowRefused: PostgreSQL cannot store one of them; none was inserted.
        UniqueKeyHeld: Another transaction has written a unique key and does not end; none was inserted.
        StoreUnavailable: Not committed as far as we know, after ten seconds; safe to repeat with the same ids.
        EnqueueUnknown: The commit's answer was lost and finished jobs are not kept.
    """
    keyed = any(job.unique is not None for job in batch)
    before = before or Attempt()
    deadline = monotonic() + DEADLINE - before.silence + len(batch) / _SLOWEST
    maybe_committed = before.maybe_committed
    if maybe_committed and not keep:
        raise EnqueueUnknown(batch[0].id)
    trouble: Exception | None = None
    while True:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                if keyed:
                    standings = await jobs.enqueue_unique(batch, once=once or maybe_committed)
                else:
                    standings = await jobs.enqueue(batch, once=once or maybe_committed)
        except (StoreUnavailable, TimeoutError) as error:
            if not isinstance(error, NotSent):
                if not keep:
                    raise EnqueueUnknown(batch[0].id) from error
                maybe_committed = True
            trouble = _telling(trouble, error)
            if monotonic() + _PAUSE > deadline:
                raise _unavailable(f"enqueue {counted(len(batch), 'job')}", batch[0].id, trouble) from trouble
            await asyncio.sleep(_PAUSE)
        else:
            # What an unanswered try of ours had inserted is new all the same.
            return [_ours(one) for one in standings] if maybe_committed and not once else standings


def _ours(standing: Standing) -> Standing:
    return Standing(standing.id, "new") if standing.verdict == "known" else standing
