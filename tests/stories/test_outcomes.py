"""Outcomes: what a run says, and what becomes of its job."""

import asyncio
import gc
import json
from datetime import timedelta

import pytest
from invariants import Journal, in_order  # noqa: F401  # the fixture works by being there
from support import eventually

from aiopgq import App, Backoff, Cancel, Fail, Retry, Snooze, current_job
from aiopgq.errors import JobCancelled, JobFailed

DUE_IN = "SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM aiopgq.jobs WHERE id = $1"
AT_ONCE = Backoff(base=0)


@pytest.fixture
def jobs(dsn):
    return App(dsn)


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


def says(outcome, *, how):
    """End a run by an outcome."""
    if how == "raised":
        raise outcome
    return outcome


async def is_again_pending(handle):
    info = await handle.info()
    return info if info.status == "pending" and info.last_error else None


# Retry, Snooze, Cancel, Fail


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_a_retry_spends_an_attempt_and_runs_again(jobs, journal, how):
    @jobs.task(name="t")
    async def task() -> str | Retry:
        with journal.run() as run:
            return says(Retry(after=0), how=how) if run.attempt == 1 else "done"

    async with jobs, jobs.worker():
        job = await task.enqueue()
        assert await job.result(timeout=10) == "done"
        info = await job.info()

    assert journal.attempts == [1, 2]
    assert info.attempts == 2
    assert [(entry["attempt"], entry["error"]) for entry in info.errors] == [(1, "Retry")]


async def test_a_retry_says_when_and_the_backoff_is_not_asked(jobs, sql):
    asked = []

    @jobs.task(name="t", backoff=asked.append)
    async def task() -> Retry | None:
        return Retry(after=timedelta(minutes=10))

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await eventually(lambda: is_again_pending(job))

        assert 590 < await sql.fetchval(DUE_IN, job.id) <= 600
        assert asked == []


async def test_a_retry_without_a_time_asks_the_backoff_about_its_cause(jobs, sql):
    asked = []

    def backoff(failure):
        asked.append(failure)
        return 600

    @jobs.task(name="t", backoff=backoff)
    async def task() -> None:
        try:
            int("the page is not there yet")
        except ValueError as error:
            raise Retry from error

    async with jobs, jobs.worker():
        job = await task.enqueue()
        info = await eventually(lambda: is_again_pending(job))

        assert 590 < await sql.fetchval(DUE_IN, job.id) <= 600
    [failure] = asked
    assert (failure.task, failure.attempt, failure.max_attempts) == ("t", 1, 12)
    assert isinstance(failure.error, ValueError)
    assert info.last_error.startswith("Retry, ValueError: invalid literal")
    assert "the page is not there yet" in info.errors[0]["traceback"]


async def test_a_retry_of_the_last_attempt_is_a_dead_letter(jobs, journal):
    @jobs.task(name="t", max_attempts=2)
    async def task() -> Retry | None:
        with journal.run():
            return Retry(after=0)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=10)

    assert journal.attempts == [1, 2]
    assert [entry["error"] for entry in caught.value.errors] == ["Retry", "Retry: no attempt is left of 2"]


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_a_snooze_spends_nothing_however_often(jobs, journal, how):
    asked = []

    def backoff(failure):
        asked.append(failure.attempt)
        return 0

    @jobs.task(name="t", max_attempts=2, backoff=backoff)
    async def task() -> str | Snooze:
        with journal.run():
            if len(journal.attempts) <= 100:
                return says(Snooze(0), how=how)
            if len(journal.attempts) == 101:
                raise ValueError("once")
            return "done"

    async with jobs, jobs.worker():
        job = await task.enqueue()
        assert await job.result(timeout=30) == "done"
        info = await job.info()

    assert journal.attempts == [1] * 101 + [2]
    assert info.attempts == 2
    assert asked == [1]
    assert [entry["error"] for entry in info.errors] == ["ValueError: once"]


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_a_cancel_ends_the_job_for_a_reason(jobs, journal, how):
    @jobs.task(name="t")
    async def task() -> Cancel | None:
        with journal.run():
            return says(Cancel("the account was closed"), how=how)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobCancelled, match="the account was closed"):
            await job.result(timeout=10)
        info = await job.info()

    assert journal.attempts == [1]
    assert (info.status, info.errors) == ("cancelled", [])


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_a_fail_makes_a_dead_letter_at_once(jobs, journal, how):
    @jobs.task(name="t", max_attempts=12)
    async def task() -> Fail | None:
        with journal.run():
            return says(Fail("no such user"), how=how)

    async with jobs, jobs.worker(name="worker 7"):
        job = await task.enqueue()
        with pytest.raises(JobFailed, match="no such user") as caught:
            await job.result(timeout=10)

    assert journal.attempts == [1]
    [entry] = caught.value.errors
    assert (entry["attempt"], entry["error"], entry["worker"]) == (1, "no such user", "worker 7")


async def test_reasons_that_cannot_be_stored_are_stored_as_far_as_they_can(jobs):
    ugly = "a\x00b\ud800c" + "x" * 100_000

    @jobs.task(name="fails")
    async def fails() -> Fail | None:
        return Fail(ugly)

    @jobs.task(name="cancels")
    async def cancels() -> Cancel | None:
        return Cancel(ugly)

    async with jobs, jobs.worker():
        reasons = []
        for task in (fails, cancels):
            job = await task.enqueue()
            with pytest.raises((JobFailed, JobCancelled)):
                await job.result(timeout=10)
            reasons.append((await job.info()).last_error)

    assert all(reason.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}cxxx") for reason in reasons)
    assert all(len(reason) < 3000 for reason in reasons)


# attempts


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_job_that_always_fails_starts_exactly_as_often_as_it_may(jobs, journal, most):
    @jobs.task(name="t", max_attempts=most, backoff=AT_ONCE)
    async def task() -> None:
        with journal.run() as run:
            raise ValueError(f"attempt {run.attempt}")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=10)
        info = await job.info()

    attempts = list(range(1, most + 1))
    assert journal.attempts == attempts
    assert (info.attempts, info.max_attempts) == (most, most)
    assert [entry["attempt"] for entry in caught.value.errors] == attempts
    assert [entry["error"] for entry in caught.value.errors] == [f"ValueError: attempt {n}" for n in attempts]
    assert all("raise ValueError" in entry["traceback"] for entry in caught.value.errors)


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_job_may_complete_in_its_last_attempt(jobs, journal, most):
    @jobs.task(name="t", max_attempts=most, backoff=AT_ONCE)
    async def task() -> int:
        with journal.run() as run:
            if run.attempt < most:
                raise ValueError
            return run.attempt

    async with jobs, jobs.worker():
        job = await task.enqueue()

        assert await job.result(timeout=10) == most
    assert journal.attempts == list(range(1, most + 1))


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_timeouts_and_exceptions_spend_attempts_alike(jobs, journal, most):
    @jobs.task(name="t", max_attempts=most, backoff=AT_ONCE, timeout=0.05)
    async def task() -> None:
        with journal.run() as run:
            if run.attempt % 2:
                await asyncio.sleep(60)
            raise ValueError("no")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=10)

    assert journal.attempts == list(range(1, most + 1))
    kinds = [entry["error"].partition(":")[0] for entry in caught.value.errors]
    assert kinds == ["TimeoutError", "ValueError", "TimeoutError"][:most]


async def test_options_of_one_call_override_the_attempts_and_the_timeout(jobs, journal):
    @jobs.task(name="t", max_attempts=5, backoff=AT_ONCE, timeout=60)
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(60)

    async with jobs, jobs.worker():
        job = await task.options(max_attempts=2, timeout=0.05).enqueue()
        with pytest.raises(JobFailed, match="TimeoutError"):
            await job.result(timeout=10)

    assert journal.attempts == [1, 2]


# backoff


@pytest.mark.parametrize(
    ("answer", "earliest", "latest"),
    [
        (timedelta(hours=1), 3590, 3600),
        (1800, 1790, 1800),
        (0.5e-9, -10, 0.001),
    ],
)
async def test_a_backoff_policy_answers_in_seconds_or_a_timedelta(jobs, sql, answer, earliest, latest):
    @jobs.task(name="t", backoff=lambda _: answer, max_attempts=2)
    async def task() -> None:
        raise ValueError(current_job().attempt)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        await eventually(lambda: has_errors(job))

        due_in = await sql.fetchval(DUE_IN, job.id)
        assert due_in is None or earliest < due_in <= latest


async def has_errors(handle):
    return (await handle.info()).errors


async def test_a_policy_that_answers_none_buries_the_job(jobs, journal):
    @jobs.task(name="t", backoff=lambda failure: 0 if failure.attempt < 2 else None)
    async def task() -> None:
        with journal.run():
            raise ValueError("no")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed, match="ValueError: no"):
            await job.result(timeout=10)

    assert journal.attempts == [1, 2]


def raises(error):
    def policy(_):
        raise error

    return policy


async def test_a_policy_of_no_use_is_replaced_by_the_default_and_the_error_says_so(jobs):
    policies = {
        "an error": raises(ZeroDivisionError("oops")),
        "an exit": raises(SystemExit(3)),
        "a cancellation": raises(asyncio.CancelledError()),
        "infinity": lambda _: float("inf"),
        "nan": lambda _: float("nan"),
        "negative": lambda _: -1,
        "text": lambda _: "soon",
        "bool": lambda _: True,
    }

    async def task() -> None:
        raise ValueError("no")

    tasks = {name: jobs.task(name=name, backoff=policy)(task) for name, policy in policies.items()}
    async with jobs, jobs.worker():
        handles = {name: await task.enqueue() for name, task in tasks.items()}
        infos = {name: await eventually(lambda job=job: is_again_pending(job)) for name, job in handles.items()}

    assert {name: info.attempts for name, info in infos.items()} == dict.fromkeys(policies, 1)
    assert all(info.last_error.startswith("ValueError: no (its backoff was of no use, ") for info in infos.values())
    assert all((info.run_at - info.created_at).total_seconds() > 0.8 for info in infos.values())


async def test_an_error_named_in_fail_on_leaves_no_second_chance(jobs, journal):
    @jobs.task(name="t", fail_on=(LookupError,), backoff=AT_ONCE)
    async def task() -> None:
        with journal.run() as run:
            if run.attempt == 1:
                raise ValueError("again")
            raise KeyError("never")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed, match="KeyError"):
            await job.result(timeout=10)

    assert journal.attempts == [1, 2]


async def test_a_timeout_named_in_fail_on_leaves_no_second_chance(jobs, journal):
    @jobs.task(name="t", fail_on=(TimeoutError,), timeout=0.05)
    async def task() -> None:
        with journal.run():
            await asyncio.sleep(60)

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed, match="TimeoutError: the run took longer than its timeout"):
            await job.result(timeout=10)

    assert journal.attempts == [1]


# dead letters


async def test_a_replayed_dead_letter_has_all_its_attempts_again_and_keeps_its_history(jobs, journal):
    @jobs.task(name="t", max_attempts=3, backoff=AT_ONCE)
    async def task() -> None:
        with journal.run():
            raise ValueError(f"run {len(journal.attempts)}")

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        assert await jobs.inspector.dead(task="t") == [job.id]
        assert (await jobs.inspector.replay([job.id])).jobs == 1
        await eventually(lambda: len(journal.attempts) == 6)
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=10)

    assert journal.attempts == [1, 2, 3, 1, 2, 3]
    assert [entry["error"] for entry in caught.value.errors] == [f"ValueError: run {n}" for n in range(1, 7)]


async def test_a_dead_letter_replayed_twice_at_once_runs_once(jobs, journal):
    @jobs.task(name="t", max_attempts=1)
    async def task() -> str:
        with journal.run():
            if len(journal.attempts) == 1:
                raise ValueError
            return "done"

    async with jobs, jobs.worker():
        job = await task.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        replayed = await asyncio.gather(*(jobs.inspector.replay([job.id, job.id]) for _ in range(4)))
        assert await job.result(timeout=10) == "done"

    assert sum(one.jobs for one in replayed) == 1
    assert journal.attempts == [1, 1]


async def test_only_dead_letters_are_replayed_or_purged(jobs, journal):
    going, may_end = asyncio.Event(), asyncio.Event()

    @jobs.task(name="quick")
    async def quick() -> None:
        with journal.run():
            pass

    @jobs.task(name="slow")
    async def slow() -> None:
        with journal.run():
            going.set()
            await may_end.wait()

    async with jobs, jobs.worker():
        completed, running = await quick.enqueue(), await slow.enqueue()
        pending = await quick.options(delay=600).enqueue()
        await completed.result(timeout=10)
        await going.wait()

        ids = [completed.id, running.id, pending.id]
        assert await jobs.inspector.replay(ids) == (0, {})
        assert await jobs.inspector.purge(ids) == 0
        assert [(await jobs.inspector.job(one)).status for one in ids] == ["completed", "claimed", "pending"]
        may_end.set()
        await running.result(timeout=10)

    assert len(journal.jobs) == 2


async def test_a_purged_dead_letter_is_gone(jobs):
    @jobs.task(name="t", max_attempts=1)
    async def task(n: int) -> None:
        raise ValueError(n)

    async with jobs, jobs.worker():
        gone, kept = await task.enqueue(1), await task.enqueue(2)
        for job in (gone, kept):
            with pytest.raises(JobFailed):
                await job.result(timeout=10)

        assert await jobs.inspector.purge([gone.id]) == 1
        assert await jobs.inspector.dead() == [kept.id]
        assert await jobs.inspector.replay([gone.id]) == (0, {})


# results


class Cyclic(list):
    def __init__(self):
        super().__init__()
        self.append(self)


async def forgotten():
    """Nobody awaits it."""


# What the garbage collector says of the coroutine, whenever it finds it.
@pytest.mark.filterwarnings("ignore:coroutine 'forgotten' was never awaited:RuntimeWarning")
async def test_a_result_that_cannot_be_stored_is_a_dead_letter_and_the_work_is_not_repeated(jobs, journal):
    makers = {
        "object": object,
        "generator": lambda: (n for n in ()),
        "function": lambda: max,
        "cycle": Cyclic,
        "coroutine": forgotten,
        "infinity": lambda: float("inf"),
        "deep inside": lambda: {1: {2: object()}},
        "class": lambda: Retry,
    }

    @jobs.task(name="t", max_attempts=5, backoff=AT_ONCE)
    async def task(kind: str) -> object:
        with journal.run():
            return makers[kind]()

    @jobs.task(name="next")
    async def next_task() -> int:
        return 1

    async with jobs, jobs.worker():
        refused = []
        for kind in makers:
            job = await task.enqueue(kind)
            with pytest.raises(JobFailed, match="result not serialisable: "):
                await job.result(timeout=10)
            refused.append(job.id)
        gc.collect()
        assert await (await next_task.enqueue()).result(timeout=10) == 1

    assert journal.jobs == refused


async def test_a_result_that_is_too_large_is_refused_but_settled(dsn, journal):
    jobs = App(dsn, max_result_bytes=1000)

    @jobs.task(name="t")
    async def task(size: int) -> str:
        with journal.run():
            return "x" * size

    async with jobs, jobs.worker():
        assert await (await task.enqueue(998)).result(timeout=10) == "x" * 998
        job = await task.enqueue(999)
        with pytest.raises(JobFailed, match=r"1,001 bytes of JSON, the limit is 1,000"):
            await job.result(timeout=10)

    assert journal.attempts == [1, 1]


async def test_arguments_that_no_longer_fit_the_signature_fail_the_run_by_name(jobs, sql):
    @jobs.task(name="t", max_attempts=1)
    async def task(user_id: int) -> None: ...

    async with jobs, jobs.worker():
        job_id = await sql.fetchval("SELECT aiopgq.enqueue('t', $1, p_max_attempts => 1)", json.dumps({"user": 1}))
        with pytest.raises(JobFailed, match="'user_id': is missing"):
            await jobs.handle(job_id).result(timeout=10)
