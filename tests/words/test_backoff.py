"""Laws of the backoff: bounded, never shrinking, safe at any attempt number."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiopgq._words.backoff import Backoff, Failure
from aiopgq.errors import ConfigError

YEAR = 365 * 86_400.0
spans = st.floats(0, YEAR) | st.integers(0, int(YEAR))
factors = st.floats(1, 1e300) | st.integers(1, 1000)
attempts = st.integers(1, 200) | st.integers(1, 2**31 - 1)
shares = st.floats(0, 1)
backoffs = st.builds(Backoff, base=spans, factor=factors, cap=spans, jitter=shares)


@given(backoffs, attempts, shares)
def test_a_delay_is_finite_and_within_the_jitter_of_the_cap(backoff, attempt, spread):
    delay = backoff.delay(attempt, lambda: spread)

    assert math.isfinite(delay)
    assert 0 <= delay <= backoff.cap * (1 + backoff.jitter) * (1 + 1e-12)


@given(backoffs, attempts, st.integers(1, 50))
def test_without_jitter_a_later_attempt_never_waits_less(backoff, attempt, later):
    middle = lambda: 0.5  # noqa: E731  # the value at which jitter changes nothing

    assert backoff.delay(attempt, middle) <= backoff.delay(attempt + later, middle)


@given(backoffs, attempts, shares, shares)
def test_jitter_spreads_to_both_sides_and_no_further(backoff, attempt, first, second):
    middle, other = (backoff.delay(attempt, lambda one=one: one) for one in (0.5, first))

    assert abs(other - middle) <= middle * (backoff.jitter + 1e-9) + 1e-300
    if first <= second:
        assert other <= backoff.delay(attempt, lambda: second)


@given(backoffs, st.integers(-(2**31), 0))
def test_an_attempt_number_that_cannot_be_waits_like_the_first(backoff, attempt):
    assert backoff.delay(attempt, lambda: 0.5) == backoff.delay(1, lambda: 0.5)


@given(backoffs, attempts)
def test_as_a_policy_it_looks_at_the_attempt_alone(backoff, attempt):
    delay = backoff(Failure("t", attempt, 2**31 - 1, ValueError()))

    assert 0 <= delay <= backoff.cap * (1 + backoff.jitter) * (1 + 1e-12)


def test_the_default_gives_twelve_attempts_about_five_and_a_half_hours():
    exact = [Backoff(jitter=0).delay(attempt) for attempt in range(1, 12)]

    assert exact[:7] == [1, 4, 16, 64, 256, 1024, 3600]
    assert 5.3 * 3600 < sum(exact) < 5.7 * 3600
    assert [Backoff().delay(1, lambda spread=spread: spread) for spread in (0, 1)] == pytest.approx([0.8, 1.2])


def test_spans_are_seconds_or_timedeltas():
    assert Backoff(base=timedelta(minutes=1), cap=timedelta(hours=1)) == Backoff(base=60, cap=3600)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base", -1),
        ("base", math.inf),
        ("base", "1"),
        ("cap", math.nan),
        ("cap", timedelta(days=-1)),
        ("factor", 0.99),
        ("factor", math.nan),
        ("factor", math.inf),
        ("factor", "2"),
        ("factor", 10**400),
        ("jitter", -0.1),
        ("jitter", 1.01),
        ("jitter", math.nan),
        ("jitter", "much"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=rf"Backoff\({setting}=…\): "):
        Backoff(**{setting: value})
