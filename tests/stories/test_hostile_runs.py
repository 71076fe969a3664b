"""Runs that break: whatever a handler does, its job is settled and its worker goes on."""

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import weakref

import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Backoff, current_job
from aiopgq._flow.run import Runner
from aiopgq.errors import JobCancelled, JobFailed

AT_ONCE = Backoff(base=0)


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


async def has_status(handle, status):
    info = await handle.info()
    return info if info.status == status else None


async def end_of(handle):
    """Wait for a job that fails for good; return its errors."""
    with pytest.raises(JobFailed) as caught:
        await handle.result(timeout=10)
    return caught.value.errors


# exceptions that are none of ours


class Unprintable(Exception):
    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __str__


class Deadly(Exception):
    def __str__(self):
        raise SystemExit(9)

    __repr__ = __str__


class Wrong(Exception):
    def __str__(self):
        return 17  # noqa: PLE0307  # what is wrong with it


class Needy(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def endless():
    endless()


def cyclic():
    first, second = ValueError("hen"), ValueError("egg")
    first.__cause__, second.__cause__ = second, first
    raise first


def chained():
    error = ValueError("first")
    for n in range(3000):
        later = ValueError(n)
        later.__context__ = error
        error = later
    raise error


def nested():
    error = ValueError("innermost")
    for _ in range(3000):
        error = ExceptionGroup("outer", [error])
    raise error


def throw(error):
    raise error


BREAKS = {
    "BaseException": lambda: throw(BaseException("x")),
    "GeneratorExit": lambda: throw(GeneratorExit()),
    "StopAsyncIteration": lambda: throw(StopAsyncIteration()),
    "CancelledError": lambda: throw(asyncio.CancelledError("by hand")),
    "BaseExceptionGroup": lambda: throw(BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError()])),
    "SystemExit": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: throw(KeyboardInterrupt()),
    "RecursionError": endless,
    "Unprintable": lambda: throw(Unprintable()),
    "Wrong": lambda: throw(Wrong()),
    "Needy": lambda: throw(Needy(1, 2)),
    "ValueError": cyclic,
    "ExceptionGroup": nested,
}
OUTLANDISH = {
    # Python does not let it out of a coroutine.
    "StopIteration": ("RuntimeError", lambda: throw(StopIteration())),
    "a chain": ("ValueError", chained),
    "huge": ("ValueError", lambda: throw(ValueError("x" * 20_000_000))),
    "NUL": ("ValueError", lambda: throw(ValueError("a\x00b"))),
    "surrogate": ("ValueError", lambda: throw(ValueError("a\ud800b"))),
    "bytes": ("ValueError", lambda: throw(ValueError(b"\xff\x00"))),
}
KINDS = {name: (name, act) for name, act in BREAKS.items()} | OUTLANDISH


@pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "thread"])
async def test_whatever_a_handler_raises_its_job_fails_by_name_and_the_worker_goes_on(jobs, sql, threaded):
    async def in_loop(kind: str) -> None:
        KINDS[kind][1]()

    def in_thread(kind: str) -> None:
        KINDS[kind][1]()

    task = jobs.task(name="t", max_attempts=1)(in_thread if threaded else in_loop)

    @jobs.task(name="next")
    async def next_task() -> int:
        return 1

    async with jobs, jobs.worker(concurrency=1):
        names = {}
        for kind in KINDS:
            [entry] = await end_of(await task.enqueue(kind))
            names[kind] = entry["error"].partition(":")[0]
            assert len(entry["error"]) < 3000
            assert len(entry["traceback"]) < 10_000
            assert await (await next_task.enqueue()).result(timeout=10) == 1

        assert names == {kind: name for kind, (name, _) in KINDS.items()}
        assert await sql.fetchval("SELECT count(*) FROM aiopgq.workers WHERE dead_at IS NULL") == 1


async def test_an_error_whose_text_ends_the_program_ends_only_its_job(jobs):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        raise Deadly

    async with jobs, jobs.worker(concurrency=1):
        [first] = await end_of(await task.enqueue())
        [second] = await end_of(await task.enqueue())

    assert first["error"] == second["error"]
    assert "Deadly" in first["error"] or "SystemExit" in first["error"]


async def test_a_log_filter_that_breaks_does_not_lose_the_outcome(jobs):
    def broken(_):
        raise ZeroDivisionError

    @jobs.task(name="t")
    async def task() -> str:
        return "done"

    logger = logging.getLogger("aiopgq.run")
    logger.setLevel(logging.INFO)
    logger.addFilter(broken)
    try:
        async with jobs, jobs.worker(concurrency=1):
            assert await (await task.enqueue()).result(timeout=10) == "done"
            assert await (await task.enqueue()).result(timeout=10) == "done"
    finally:
        logger.removeFilter(broken)
        logger.setLevel(logging.NOTSET)


async def test_what_a_failed_handler_held_goes_with_it(jobs):
    class Held:
        """Something large."""

    held = []

    @jobs.task(name="t", backoff=lambda _: 600)
    async def task() -> None:
        large = Held()
        held.append(weakref.ref(large))
        raise ValueError("no")

    gc.disable()
    try:
        async with jobs, jobs.worker():
            for _ in range(5):
                await task.enqueue()
            await eventually(lambda: len(held) == 5)
            # No collector runs: what is kept alive is held by somebody, or by a knot of references.
            await eventually(lambda: [one() for one in held] == [None] * 5)
    finally:
        gc.enable()


# timeout, cancel, shutdown: three outcomes of one cancelled coroutine


async def test_a_timeout_fails_the_attempt(jobs, journal):
    @jobs.task(name="t", timeout=0.1, max_attempts=2, backoff=AT_ONCE)
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(60)

    async with jobs, jobs.worker():
        errors = await end_of(await task.enqueue())

    assert journal.attempts == [1, 2]
    assert {entry["error"] for entry in errors} == {"TimeoutError: the run took longer than its timeout"}


async def test_a_cancel_request_ends_the_run_and_nothing_runs_again(jobs, journal):
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await going.wait()
        assert await job.cancel() == "requested"
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)
        info = await job.info()

    assert journal.attempts == [1]
    assert (info.status, info.attempts, info.errors) == ("cancelled", 1, [])


async def test_runs_that_are_cancelled_give_their_slots_back(jobs, journal, sql):
    together = asyncio.Barrier(2)

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(60)

    @jobs.task(name="next")
    async def next_task() -> None:
        with journal.run():
            await together.wait()

    async with jobs, jobs.worker(concurrency=2):
        handles = await jobs.enqueue_many([task.options(delay=60 * (n > 12)).call() for n in range(20)])
        await eventually(lambda: len(journal.jobs) == 2)
        answers = await asyncio.gather(*(job.cancel() for job in handles))
        # Those that ran, and some that got a freed slot meanwhile.
        assert answers.count("requested") >= 2
        assert set(answers) == {"cancelled", "requested"}
        for job in handles:
            with pytest.raises(JobCancelled):
                await job.result(timeout=10)
        for job in await jobs.enqueue_many([next_task.call() for _ in range(4)]):
            await job.result(timeout=10)

    # A run that was asked to end before it began did not begin.
    assert 2 + 4 <= len(journal.jobs) <= answers.count("requested") + 4
    assert journal.most_at_once == 2
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 0


async def test_a_shutdown_puts_the_job_back_and_its_attempt_too(jobs, journal, sql):
    going = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> None:
        with journal.run():
            going.set()
            await asyncio.sleep(60)

    async with jobs:
        async with jobs.worker(shutdown_grace=0):
            job = await task.enqueue()
            await going.wait()
        info = await job.info()

    assert journal.attempts == [1]
    assert (info.status, info.attempts, info.last_error, info.errors) == ("pending", 0, None, [])


async def test_a_time_limit_of_the_handler_itself_is_an_ordinary_failure(jobs):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    @jobs.task(name="says so", max_attempts=1)
    async def says_so() -> None:
        raise TimeoutError("the shop did not answer")

    async with jobs, jobs.worker():
        [own] = await end_of(await task.enqueue())
        [said] = await end_of(await says_so.enqueue())

    assert own["error"] == "TimeoutError"
    assert said["error"] == "TimeoutError: the shop did not answer"


async def test_a_handler_that_cancels_itself_has_failed_and_was_not_cancelled(jobs, journal):
    @jobs.task(name="t", max_attempts=2, backoff=AT_ONCE)
    async def task() -> None:
        with journal.run():
            asyncio.current_task().cancel()
            await asyncio.sleep(60)

    async with jobs, jobs.worker():
        errors = await end_of(await task.enqueue())

    assert journal.attempts == [1, 2]
    assert [entry["error"] for entry in errors] == ["CancelledError", "CancelledError"]


async def test_a_handler_that_cancels_itself_on_its_way_out_has_completed(jobs):
    @jobs.task(name="t")
    async def task() -> str:
        asyncio.current_task().cancel()
        return "done"

    async with jobs, jobs.worker(concurrency=1):
        assert await (await task.enqueue()).result(timeout=10) == "done"
        assert await (await task.enqueue()).result(timeout=10) == "done"


async def test_code_that_swallows_its_timeout_and_returns_has_completed(jobs, caplog):
    @jobs.task(name="t", timeout=0.05)
    async def task() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "late, but done"

    async with jobs, jobs.worker():
        assert await (await task.enqueue()).result(timeout=10) == "late, but done"
        await eventually(lambda: "completed after its timeout" in caplog.text)


async def test_code_that_swallows_its_timeout_and_fails_has_run_out_of_time(jobs):
    @jobs.task(name="t", timeout=0.05, max_attempts=1)
    async def task() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("something else broke meanwhile") from None

    async with jobs, jobs.worker():
        [entry] = await end_of(await task.enqueue())

    assert entry["error"] == "TimeoutError: the run took longer than its timeout"
    assert "something else broke meanwhile" in entry["traceback"]


async def test_a_handler_on_its_way_out_is_not_cancelled_by_every_beat(jobs, monkeypatch):
    monkeypatch.setattr("aiopgq.app._BEAT_INTERVAL", 0.05)
    going, cleaned = asyncio.Event(), []

    @jobs.task(name="t")
    async def task() -> None:
        try:
            going.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(current_job().stop_reason)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await going.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)

    assert cleaned == ["cancel"]


async def test_a_run_that_is_cancelled_before_its_first_step_is_settled(jobs, journal, monkeypatch):
    start = Runner.start

    def start_and_stop(self, job):
        start(self, job)
        self.stop(self.running[job.id], "cancel")

    monkeypatch.setattr(Runner, "start", start_and_stop)

    @jobs.task(name="coroutine")
    async def coroutine() -> None:
        with journal.run():
            pass

    @jobs.task(name="thread")
    def thread() -> None:
        with journal.run():
            pass

    async with jobs, jobs.worker(concurrency=1):
        for task in (coroutine, thread):
            job = await task.enqueue()
            with pytest.raises(JobCancelled):
                await job.result(timeout=10)
        monkeypatch.undo()
        await (await coroutine.enqueue()).result(timeout=10)

    assert len(journal.jobs) == 1


async def test_a_job_taken_from_its_run_does_not_run_beside_it(jobs, journal, sql):
    may_end = asyncio.Event()

    @jobs.task(name="t")
    async def task() -> int:
        with journal.run():
            await may_end.wait()
            return len(journal.jobs)

    async with jobs, jobs.worker(concurrency=2):
        job = await task.enqueue()
        await eventually(lambda: journal.jobs == [job.id])
        # What an operator does who mends by hand; the insert wakes the worker.
        await sql.execute(
            "UPDATE aiopgq.jobs SET status = 'pending', claim_id = NULL, worker_id = NULL, claimed_at = NULL, "
            "attempts = 0, place = nextval('aiopgq.places')"
        )
        await task.enqueue()
        await eventually(lambda: len(set(journal.jobs)) == 2)

        async def was_put_back():
            return await sql.fetchval(
                "SELECT count(*) FROM aiopgq.jobs WHERE id = $1 AND status = 'pending' AND place IS NULL", job.id
            )

        await eventually(was_put_back, what="the job waits until its old run has ended")
        may_end.set()
        assert await job.result(timeout=10) == 3

    assert journal.jobs.count(job.id) == 2


# threads


async def test_a_thread_that_outlives_its_timeout_keeps_its_slot_until_it_returns(jobs, journal):
    stopped, may_end = threading.Event(), threading.Event()
    order = []

    @jobs.task(name="t", timeout=0.1, max_attempts=1)
    def task() -> None:
        with journal.run() as run:
            order.append("begins")
            while not run.should_stop:
                may_end.wait(0.01)
            stopped.set()
            may_end.wait(10)
            order.append("ends")
            raise ValueError("too late")

    @jobs.task(name="next")
    async def next_task() -> None:
        with journal.run():
            order.append("next")

    async with jobs, jobs.worker(concurrency=1):
        job = await task.enqueue()
        await eventually(stopped.is_set)
        waiting = await next_task.enqueue()
        assert (await waiting.info()).status == "pending"
        assert (await job.info()).status in ("claimed", "running")
        may_end.set()
        [entry] = await end_of(job)
        await waiting.result(timeout=10)

    assert order == ["begins", "ends", "next"]
    assert entry["error"] == "TimeoutError: the run took longer than its timeout"
    assert "too late" in entry["traceback"]


async def test_a_thread_that_returns_after_its_timeout_has_completed(jobs):
    @jobs.task(name="t", timeout=0.05)
    def task() -> str:
        while not current_job().should_stop:
            threading.Event().wait(0.01)
        return current_job().stop_reason

    async with jobs, jobs.worker():
        assert await (await task.enqueue()).result(timeout=10) == "timeout"


async def test_a_thread_is_cancelled_by_looking_at_should_stop(jobs):
    going = threading.Event()

    @jobs.task(name="t")
    def task() -> None:
        run = current_job()
        going.set()
        while not run.should_stop:
            threading.Event().wait(0.01)
        raise InterruptedError(run.stop_reason)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await eventually(going.is_set)
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)


async def test_threads_run_beside_each_other_as_far_as_there_are_slots(jobs, journal):
    together = threading.Barrier(4)

    @jobs.task(name="t")
    def task() -> None:
        with journal.run():
            together.wait(timeout=10)

    async with jobs, jobs.worker(concurrency=4):
        handles = await jobs.enqueue_many([task.call() for _ in range(8)])
        for job in handles:
            await job.result(timeout=10)

    assert journal.most_at_once == 4


async def test_the_current_job_is_known_in_threads_and_child_tasks(jobs):
    def here():
        return str(current_job().id)

    @jobs.task(name="coroutine")
    async def coroutine() -> list[str]:
        async with asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.to_thread(here))
        return [here(), child.result(), await asyncio.get_running_loop().run_in_executor(None, here_or_nowhere)]

    @jobs.task(name="thread")
    def thread() -> list[str]:
        return [here()]

    def here_or_nowhere():
        # An executor of the loop carries no context; logging code must cope.
        return str(current_job(default=None))

    async with jobs, jobs.worker():
        first, second = await coroutine.enqueue(), await thread.enqueue()

        assert await first.result(timeout=10) == [str(first.id), str(first.id), "None"]
        assert await second.result(timeout=10) == [str(second.id)]
    assert current_job(default=None) is None


async def test_jobs_that_run_together_each_know_themselves(jobs):
    together = asyncio.Barrier(5)

    @jobs.task(name="t", max_attempts=1)
    async def task(n: int) -> list[str]:
        before = current_job()
        await together.wait()
        return [str(before.id), str(current_job().id), current_job().headers["n"]]

    async with jobs, jobs.worker(concurrency=5):
        calls = [task.options(headers={"n": str(n)}).call(n) for n in range(5)]
        handles = await jobs.enqueue_many(calls)

        for n, job in enumerate(handles):
            assert await job.result(timeout=10) == [str(job.id), str(job.id), str(n)]
