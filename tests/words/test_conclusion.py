"""Laws of the conclusion: every run, however it ends, gives a settlement that PostgreSQL can store."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiopgq._words.backoff import Backoff
from aiopgq._words.conclusion import conclude, inconclusive, postpone, release, replace_unstorable
from aiopgq._words.job import ClaimedJob, Settlement
from aiopgq._words.outcome import Cancel, Fail, Retry, Snooze
from aiopgq._words.task import define

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
LIMIT = 1000
texts = st.text(st.characters(), max_size=50) | st.just("x" * 50_000)


def job(attempts=1, max_attempts=12):
    return ClaimedJob(
        id=UUID(int=1),
        queue="default",
        task="t",
        priority=100,
        place=1,
        args="{}",
        headers=None,
        attempts=attempts,
        max_attempts=max_attempts,
        timeout=None,
        created=NOW.timestamp(),
        claim_id=UUID(int=2),
    )


def task(**options):
    async def function() -> object: ...

    return define(function, name="t", **options)


def settle(claimed, value=None, failure=None, stopped=None, **options):
    return conclude(task(**options), claimed, value, failure, stopped, "worker 1", LIMIT)


class Odd(Exception):
    """An error whose text does as it likes."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def __str__(self):
        return self.act()

    __repr__ = __str__


def exit_program():
    raise SystemExit(3)


def divide():
    return 1 / 0


messages = texts | st.binary(max_size=20) | st.integers()
kinds = st.sampled_from(
    [ValueError, KeyError, OSError, TimeoutError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]
)
errors = (
    st.builds(lambda kind, message: kind(message), kinds, messages)
    | st.builds(lambda message: BaseExceptionGroup("several", [ValueError(message)]), messages)
    | st.builds(Odd, st.sampled_from([exit_program, divide, lambda: 17]))
)
spans = st.floats(0, 1e9)
outcomes = st.one_of(
    st.builds(Retry, st.none() | spans), st.builds(Snooze, spans), st.builds(Cancel, texts), st.builds(Fail, texts)
)
policies = st.sampled_from(
    [
        Backoff(),
        Backoff(base=0),
        lambda _: None,
        lambda _: timedelta(days=1),
        lambda _: math.inf,
        lambda _: -1,
        lambda _: "soon",
        lambda _: exit_program(),
        lambda _: divide(),
    ]
)
stops = st.sampled_from([None, "timeout", "cancel", "shutdown", "lease"])
values = st.none() | st.integers() | texts | st.floats() | st.builds(object) | outcomes
claims = st.integers(1, 5).flatmap(lambda most: st.builds(job, st.integers(1, most), st.just(most)))


def check_storable(settlement):
    """Check what no settlement may lack."""
    assert settlement.kind in ("completed", "cancelled", "failed", "pending")
    assert math.isfinite(settlement.delay)
    assert settlement.delay >= 0
    for text in (settlement.reason, settlement.result, settlement.error):
        assert text is None or not UNSTORABLE.search(text)
        assert text is None or "\\u0000" not in text
        assert text is None or len(text) < 60_000
    if settlement.error is not None:
        entry = json.loads(settlement.error)
        assert entry["attempt"] == settlement.job.attempts
        assert entry["worker"] == "worker 1"
        assert entry["error"]


@given(claims, errors, stops, policies)
def test_every_failure_is_told_in_a_way_that_can_be_stored(claimed, failure, stopped, policy):
    settlement = settle(claimed, failure=failure, stopped=stopped, backoff=policy)

    check_storable(settlement)
    match stopped:
        case "shutdown":
            assert settlement == release(claimed)
        case "cancel":
            assert (settlement.kind, settlement.error) == ("cancelled", None)
        case _:
            assert settlement.kind in ("failed", "pending")
            assert not settlement.refund
            assert settlement.error is not None
            assert json.loads(settlement.error)["error"] == settlement.reason
            if claimed.attempts == claimed.max_attempts:
                assert settlement.kind == "failed"
            if stopped == "lease":
                assert settlement.reason == "worker lost"
            if stopped == "timeout":
                assert settlement.reason.startswith("TimeoutError: the run took longer than its timeout")


@given(claims, outcomes, stops, policies, st.booleans())
def test_an_outcome_means_the_same_whether_returned_or_raised_and_however_the_run_was_stopped(
    claimed, outcome, stopped, policy, raised
):
    value, failure = (None, outcome) if raised else (outcome, None)
    settlement = settle(claimed, value, failure, stopped, backoff=policy)

    check_storable(settlement)
    spent = claimed.attempts == claimed.max_attempts
    match outcome:
        case Snooze():
            assert settlement == Settlement(claimed, "pending", delay=outcome.delay, refund=True)
        case Retry():
            assert settlement.kind == "failed" if spent else settlement.kind in ("pending", "failed")
            assert not settlement.refund
            if outcome.after is not None and not spent:
                assert (settlement.kind, settlement.delay) == ("pending", outcome.after)
        case Cancel():
            assert settlement.kind == "cancelled"
            assert settlement.reason
        case Fail():
            assert settlement.kind == "failed"
            assert settlement.reason


@given(claims, values, stops)
def test_a_returned_value_completes_the_job_or_buries_it_but_is_never_tried_again(claimed, value, stopped):
    settlement = settle(claimed, value, None, stopped)

    check_storable(settlement)
    if not isinstance(value, Retry | Snooze | Cancel | Fail):
        assert settlement.kind in ("completed", "failed")
        assert (settlement.kind == "completed") == (settlement.reason is None)
        assert settlement.result is None or len(settlement.result.encode()) <= LIMIT


@given(claims, errors)
def test_what_could_not_be_concluded_is_told_by_its_name(claimed, error):
    settlement = inconclusive(claimed, error, "worker 1")

    check_storable(settlement)
    assert settlement.kind == ("failed" if claimed.attempts == claimed.max_attempts else "pending")
    assert type(error).__name__ in settlement.reason


@given(st.sampled_from(["completed", "cancelled", "failed", "pending"]), texts)
def test_an_outcome_refused_again_and_again_comes_to_an_end(kind, detail):
    refused = Settlement(job(), kind, result="1", reason="why")
    first = replace_unstorable(refused, ValueError(detail), "worker 1")
    second = replace_unstorable(first, ValueError(detail), "worker 1")

    check_storable(first)
    check_storable(second)
    assert first.kind == "failed"
    assert f"({kind}) cannot be stored" in first.reason
    # Neither ended nor buried: set aside, far away, for a person to look at.
    assert second.kind == "pending"
    assert second.delay > 3600
    assert second.reason == first.reason


def test_what_is_given_back_costs_no_attempt():
    assert (release(job()).refund, release(job()).delay) == (True, 0)
    assert postpone(job()).refund
    assert postpone(job()).delay > 0


def test_a_time_that_ran_out_counts_as_a_timeout_for_fail_on():
    assert settle(job(), failure=ValueError(), stopped="timeout", fail_on=(TimeoutError,)).kind == "failed"
    assert settle(job(), failure=ValueError(), stopped="timeout", fail_on=(ValueError,)).kind == "pending"
    assert settle(job(), failure=KeyError(), fail_on=(LookupError,)).kind == "failed"


def test_the_policy_is_asked_about_the_failure_with_the_attempt_that_failed():
    asked = []
    settle(job(3, 5), failure=KeyError("x"), backoff=asked.append)

    [failure] = asked
    assert (failure.task, failure.attempt, failure.max_attempts) == ("t", 3, 5)
    assert isinstance(failure.error, KeyError)


@pytest.mark.parametrize("failure", [RecursionError(), MemoryError(), ValueError()])
def test_a_traceback_has_an_end(failure):
    def deep(n):
        if n == 0:
            raise failure
        deep(n - 1)

    with pytest.raises(type(failure)) as caught:
        deep(500)
    entry = json.loads(settle(job(), failure=caught.value).error)

    assert len(entry["traceback"]) < 10_000
    assert type(failure).__name__ in entry["traceback"]
