"""Laws of the options: what is accepted fits PostgreSQL's columns, all else is a ConfigError that names the setting."""

import math
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiopgq._words import options
from aiopgq._words.options import UNSET, JobOptions
from aiopgq.errors import ConfigError

anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text()
    | st.binary()
    | st.timedeltas()
    | st.datetimes()
    | st.uuids()
    | st.lists(st.integers())
    | st.dictionaries(st.text(), st.text() | st.integers())
)
zones = st.timezones() | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))


def refused(check, value):
    """Run a check; return None if the value is refused properly."""
    try:
        return check("the setting", value)
    except ConfigError as error:
        refusal = error
    assert refusal.setting == "the setting"
    assert str(refusal) == f"the setting: {refusal.reason}"
    assert refusal.reason.endswith((".", "…)."))
    return None


@given(anything)
def test_seconds_are_finite_floats_from_zero_to_a_hundred_years(value):
    checked = refused(options.seconds, value)

    assert checked is None or (type(checked) is float and 0 <= checked <= 100 * 365 * 86_400)


@given(st.floats(0, 1e9) | st.integers(0, 10**9) | st.timedeltas(timedelta(0), timedelta(days=36_500)))
def test_every_ordinary_span_is_accepted_as_it_is(value):
    expected = value.total_seconds() if isinstance(value, timedelta) else value

    assert options.seconds("delay", value) == expected


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), math.nan, math.inf, -0.001, True, "1", None, timedelta.max],
    ids=["endless", "endless below", "nan", "inf", "negative", "bool", "text", "none", "longest"],
)
def test_spans_that_make_no_sense_are_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"^delay: "):
        options.seconds("delay", value)


@given(st.datetimes(timezones=zones) | anything)
def test_a_moment_is_aware_and_within_what_drivers_can_write(value):
    checked = refused(options.moment, value)

    if checked is not None:
        assert checked is value
        assert checked.astimezone(UTC).year in range(1899, 10_000)


@pytest.mark.parametrize(
    "value",
    [
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime(2026, 1, 1),  # noqa: DTZ001  # naive is what is refused
    ],
)
def test_moments_that_no_calendar_holds_are_refused(value):
    with pytest.raises(ConfigError, match=r"^run_at: "):
        options.moment("run_at", value)


@given(anything | st.text(st.characters(categories=["Cs", "Cc", "L"])))
def test_a_name_has_1_to_200_bytes_that_postgresql_stores(value):
    checked = refused(options.name, value)

    if checked is not None:
        assert checked == value
        assert 1 <= len(checked.encode()) <= 200
        assert "\x00" not in checked


@pytest.mark.parametrize("name", ["x" * 200, "é" * 100, "💥" * 50, " ", "a.b:c/d", "'; DROP TABLE jobs; --"])
def test_names_are_not_judged_by_taste(name):
    assert options.name("queue", name) == name


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 101, "a\x00", "\ud800", b"x", None, 7])
def test_names_that_cannot_be_stored_are_refused(name):
    with pytest.raises(ConfigError, match=r"^queue: "):
        options.name("queue", name)


@given(anything)
def test_a_priority_is_a_smallint(value):
    checked = refused(options.priority, value)

    assert checked is None or (type(checked) is int and -32_768 <= checked <= 32_767)


@pytest.mark.parametrize("value", [-32_768, -1, 0, 32_767, options.Priority.EXPLICIT])
def test_every_smallint_is_a_priority(value):
    assert options.priority("priority", value) == value


@given(anything)
def test_a_number_of_attempts_is_a_positive_integer(value):
    checked = refused(options.attempts, value)

    assert checked is None or (type(checked) is int and 1 <= checked < 2**31)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", 2**31, None])
def test_attempts_that_make_no_sense_are_refused(value):
    with pytest.raises(ConfigError, match=r"^max_attempts: "):
        options.attempts("max_attempts", value)


@given(anything | st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_headers_are_strings_that_jsonb_holds(value):
    checked = refused(options.headers, value)

    if checked is not None:
        assert checked == value
        assert checked is not value
        for text in (*checked, *checked.values()):
            assert "\x00" not in text
            text.encode()


@given(anything)
def test_an_id_is_a_uuid_and_a_count_is_positive(value):
    identity, count = refused(options.identity, value), refused(options.count, value)

    assert identity is None or isinstance(identity, UUID)
    assert count is None or count >= 1


chosen = st.builds(
    JobOptions,
    queue=st.none() | st.just("mail"),
    priority=st.none() | st.integers(-3, 3),
    delay=st.none() | st.floats(0, 10),
    run_at=st.none(),
    max_attempts=st.none() | st.integers(1, 3),
    timeout=st.just(UNSET) | st.none() | st.floats(1, 10),
    headers=st.none() | st.just({"a": "b"}),
    id=st.none() | st.just(uuid4()),
)


@given(chosen)
def test_options_of_nothing_change_nothing(some):
    assert some.merged(JobOptions()) == some
    assert JobOptions().merged(some) == some


@given(chosen, chosen, chosen)
def test_options_are_merged_in_the_order_they_are_given(first, second, third):
    assert first.merged(second).merged(third) == first.merged(second.merged(third))
    assert first.merged(first) == first


@given(chosen, chosen)
def test_what_is_given_later_wins(first, second):
    merged = first.merged(second)

    assert second.priority in (None, merged.priority)
    assert second.delay in (None, merged.delay)
    assert second.timeout in (UNSET, merged.timeout)


def test_a_later_moment_replaces_an_earlier_delay_and_the_other_way_round():
    delay, moment = JobOptions(delay=5), JobOptions(run_at=datetime(2030, 1, 1, tzinfo=UTC))

    assert (delay.merged(moment).delay, delay.merged(moment).run_at) == (None, moment.run_at)
    assert (moment.merged(delay).delay, moment.merged(delay).run_at) == (5, None)
