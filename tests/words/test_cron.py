"""When schedules fire: the days on which clocks are set, whatever the zone, and expressions that mean nothing."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from aiopgq._words.cron import Timing, timing
from aiopgq.errors import ConfigError

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def local_fires(cron, zone, begin, end):
    """Return the fires of some local days, as local times with their offset."""
    here = ZoneInfo(zone)
    first = datetime.fromisoformat(begin).replace(tzinfo=here).astimezone(UTC) - timedelta(microseconds=1)
    last = datetime.fromisoformat(end).replace(tzinfo=here)
    fires = takewhile(lambda fire: fire < last, timing(cron, None, zone).fires(first))
    return [fire.astimezone(here).isoformat(timespec="minutes")[5:] for fire in fires]


@pytest.mark.parametrize(
    ("zone", "cron", "day", "fires"),
    [
        # A time that does not exist: once, at the end of the gap.
        (NEW_YORK, "30 2 * * *", "2026-03-08", ["03-08T03:00-04:00"]),
        (NEW_YORK, "0 30 2 * * *", "2026-03-08", ["03-08T03:00-04:00"]),
        (NEW_YORK, "*/15 2 * * *", "2026-03-08", ["03-08T03:00-04:00"]),
        (NEW_YORK, "0 2,3 * * *", "2026-03-08", ["03-08T03:00-04:00"]),
        (NEW_YORK, "0 */2 * * *", "2026-03-08", [
            "03-08T00:00-05:00", "03-08T03:00-04:00", *(f"03-08T{hour:02}:00-04:00" for hour in range(4, 24, 2)),
        ]),
        ("Asia/Beirut", "0 0 * * *", "2026-03-29", ["03-29T01:00+03:00"]),
        ("Asia/Beirut", "30 0 * * 0", "2026-03-29", ["03-29T01:00+03:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04", ["10-04T02:30+11:00"]),
        # A time that happens twice: once, the first time.
        (NEW_YORK, "30 1 * * *", "2026-11-01", ["11-01T01:30-04:00"]),
        (NEW_YORK, "0 30 1 * * *", "2026-11-01", ["11-01T01:30-04:00"]),
        (NEW_YORK, "30 1-2 * * *", "2026-11-01", ["11-01T01:30-04:00", "11-01T02:30-05:00"]),
        (NEW_YORK, "*/30 1 * * *", "2026-11-01", ["11-01T01:00-04:00", "11-01T01:30-04:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05", ["04-05T01:45+11:00"]),
        ("America/Havana", "30 0 * * *", "2026-11-01", ["11-01T00:30-04:00"]),
        # A day that does not exist, and zones that are no whole hours away.
        ("Asia/Kathmandu", "0 0 * * *", "2026-05-01", ["05-01T00:00+05:45"]),
        ("Pacific/Chatham", "0 0 * * *", "2026-05-01", ["05-01T00:00+12:45"]),
    ],
)  # fmt: skip
def test_a_local_time_fires_once_on_the_day_the_clock_is_set(zone, cron, day, fires):
    following = (datetime.fromisoformat(day) + timedelta(days=1)).isoformat()

    assert local_fires(cron, zone, day, following) == fires


@pytest.mark.parametrize("cron", ["30 1 * * *", "*/10 1 * * *", "0 30 1 1 11 *"])
def test_whoever_starts_within_an_hour_that_happens_twice_does_not_fire_into_the_past(cron):
    here = ZoneInfo(NEW_YORK)
    second = datetime(2026, 11, 1, 1, 5, tzinfo=here, fold=1)

    fire = timing(cron, None, NEW_YORK).after(second).astimezone(here)

    assert fire.replace(tzinfo=None) > datetime(2026, 11, 2)  # noqa: DTZ001  # on the wall


def test_a_day_that_a_zone_left_out_fires_nothing_of_its_own():
    assert local_fires("0 12 * * *", "Pacific/Apia", "2011-12-29", "2012-01-01") == [
        "12-29T12:00-10:00",
        # Noon of the 30th, which Samoa left out: at the end of the gap.
        "12-31T00:00+14:00",
        "12-31T12:00+14:00",
    ]


@pytest.mark.parametrize(
    ("cron", "seconds", "spring", "autumn"),
    [("0 * * * *", 3600, 23, 25), ("*/15 * * * *", 900, 92, 100), ("@hourly", 3600, 23, 25)],
)
def test_what_fires_in_every_hour_goes_on_evenly_when_the_clock_is_set(cron, seconds, spring, autumn):
    for begin, end, count in (("2026-03-29", "2026-03-30", spring), ("2026-10-25", "2026-10-26", autumn)):
        here = ZoneInfo(BERLIN)
        first = datetime.fromisoformat(begin).replace(tzinfo=here) - timedelta(microseconds=1)
        last = datetime.fromisoformat(end).replace(tzinfo=here).astimezone(UTC)
        fires = list(takewhile(lambda fire, last=last: fire < last, timing(cron, None, BERLIN).fires(first)))

        assert len(fires) == count
        assert {later - fire for fire, later in pairwise(fires)} == {timedelta(seconds=seconds)}


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 0 13 * 5", ["02-06", "02-13", "02-20", "02-27", "03-06", "03-13"]),  # either, as no field begins with *
        ("0 0 */2 * 1", ["02-09", "02-23", "03-09", "03-23"]),  # both, as a field begins with *
        ("0 0 * * 7", ["02-01", "02-08", "02-15"]),
        ("0 0 * * 0", ["02-01", "02-08", "02-15"]),
        ("0 0 * * mon-Wed", ["02-02", "02-03", "02-04", "02-09"]),
        ("0 0 L * *", ["02-28", "03-31", "04-30"]),
        ("0 0 LW * *", ["02-27", "03-31", "04-30"]),
        ("0 0 * * 5L", ["02-27", "03-27", "04-24"]),
        ("0 0 * * 5#2", ["02-13", "03-13", "04-10"]),
        ("0 0 29 2 *", ["02-29", "02-29"]),
        ("@monthly", ["02-01", "03-01", "04-01"]),
        ("@weekly", ["02-01", "02-08"]),
        ("@yearly", ["01-01", "01-01"]),
        (" @Daily ", ["02-01", "02-02"]),
    ],
)
def test_days_are_chosen_as_cron_chooses_them(cron, days):
    fires = timing(cron, None, None).fires(datetime(2026, 1, 31, 12, tzinfo=UTC))

    assert [next(fires).strftime("%m-%d") for _ in days] == days


def test_six_fields_begin_with_the_second():
    fires = timing("*/20 * * * * *", None, None).fires(datetime(2026, 1, 1, tzinfo=UTC))

    assert [next(fires).second for _ in range(4)] == [20, 40, 0, 20]


@pytest.mark.parametrize(
    "cron",
    [
        "", " ", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *",
        "* * * * 8", "*/0 * * * *", "*/60 * * * *", "*/70 * * * *", "* */24 * * *", "5/99 * * * *", "0 0 L/2 * *",
        "0 0 15W * *", "0 0 ? * *", "5-1 * * * *", "0 22-2 * * *", "0 0 * * FRI-MON", "0 0 * * XXX", "\uff11 * * * *",
        "0 0 30 2 *", "-1 * * * *", "1,,2 * * * *", "1.5 * * * *", "@reboot", "@", "@every 5m", "0 0 * * 1#6",
        "\x00 * * * *", "0 0 * * L",
    ],
)  # fmt: skip
def test_an_expression_that_means_nothing_is_refused(cron):
    with pytest.raises(ConfigError, match="schedule"):
        timing(cron, None, None)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlim", "", "../etc/passwd", "/etc/localtime", "Europe", "\x00", "x" * 5000, 5]
)
def test_a_time_zone_nobody_knows_is_refused(zone):
    with pytest.raises(ConfigError, match="timezone"):
        timing("@daily", None, zone)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((None, None, None), "one of the two"),
        (("@daily", 5, None), "one of the two"),
        ((None, 0, None), "too short"),
        ((None, -1, None), "not between"),
        ((None, float("nan"), None), "not between"),
        ((None, "5", None), "takes seconds"),
        ((None, 30, BERLIN), "an interval has none"),
        ((5, None, None), "as a string"),
    ],
)
def test_a_schedule_has_an_expression_or_an_interval(given, reason):
    with pytest.raises(ConfigError, match=reason):
        timing(*given)


@pytest.mark.parametrize(
    ("cron", "every", "zone", "words"),
    [
        ("*/5 * * * *", None, None, "every 5 minutes"),
        ("*/1 * * * *", None, None, "every minute"),
        ("*/7 * * * *", None, None, "*/7 * * * *"),
        ("0 3 * * *", None, BERLIN, "at 03:00 every day, Europe/Berlin"),
        ("@daily", None, None, "at 00:00 every day"),
        ("30 9 * * 1-5", None, None, "at 09:30 on Monday through Friday"),
        ("0 0 13 * 5", None, None, "at 00:00 on the 13th day of month and on Friday"),
        (None, 30, None, "every 30 seconds"),
        (None, 0.5, None, "every 0.5 seconds"),
        (None, 60, None, "every minute"),
        (None, timedelta(hours=36), None, "every 36 hours"),
        (None, timedelta(days=2), None, "every 2 days"),
    ],
)
def test_a_schedule_is_explained_in_words(cron, every, zone, words):
    assert str(timing(cron, every, zone)) == words


# Laws

ZONES = [
    "UTC", BERLIN, NEW_YORK, "Asia/Beirut", "Australia/Lord_Howe", "America/Havana", "Africa/Casablanca",
    "Asia/Kathmandu", "Pacific/Chatham", "America/Santiago", "Europe/Dublin", "Pacific/Apia", "Antarctica/Troll",
]  # fmt: skip
minutes = st.one_of(st.just("*"), st.sampled_from(["*/15", "*/7", "0,30", "59"]), st.integers(0, 59).map(str))
hours = st.one_of(st.just("*"), st.sampled_from(["*/2", "0-3", "1,2", "23"]), st.integers(0, 23).map(str))
days = st.sampled_from(["*", "*", "1", "L", "29-31"])
weekdays = st.sampled_from(["*", "*", "*", "0", "1-5", "7"])
expressions = st.tuples(minutes, hours, days, st.just("*"), weekdays).map(" ".join)


@st.composite
def near_a_change(draw):
    """A zone, and a moment within days of a change of its clock, or anywhere."""
    zone = draw(st.sampled_from(ZONES))
    here = ZoneInfo(zone)
    moment = datetime(2005, 1, 1, tzinfo=UTC) + draw(st.timedeltas(timedelta(), timedelta(days=9000)))
    if draw(st.booleans()):
        for _ in range(400):
            later = moment + timedelta(days=1)
            if later.astimezone(here).utcoffset() != moment.astimezone(here).utcoffset():
                break
            moment = later
        # To the minute: the hours around a change are where things go wrong.
        for step in (timedelta(hours=1), timedelta(minutes=1)):
            while (moment + step).astimezone(here).utcoffset() == moment.astimezone(here).utcoffset() and (
                moment < later
            ):
                moment += step
        moment += timedelta(seconds=draw(st.integers(-7200, 7200)))
    return zone, moment


def wall(moment, zone):
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


@settings(deadline=None, max_examples=150)
@given(near_a_change(), expressions)
def test_fires_are_strictly_later_and_the_same_wherever_one_starts(where, cron):
    zone, moment = where
    rule = Timing(cron, None, zone)
    fires = rule.fires(moment)
    seen = [next(fires) for _ in range(30)]

    assert seen[0] > moment
    assert all(later > fire for fire, later in pairwise(seen))
    assert [rule.after(fire) for fire in seen[:-1]] == seen[1:]
    # Whoever looks in between finds the same.
    assert [rule.after(later - timedelta(microseconds=1)) for later in seen] == seen


@settings(deadline=None, max_examples=150)
@given(near_a_change(), expressions.filter(lambda cron: cron.split()[1] != "*"))
def test_no_local_time_fires_twice_if_the_expression_names_hours(where, cron):
    zone, moment = where
    fires = Timing(cron, None, zone).fires(moment)
    seen = [wall(next(fires), zone) for _ in range(40)]

    assert len(set(seen)) == len(seen)


@settings(deadline=None, max_examples=50)
@given(near_a_change(), expressions)
def test_what_fires_is_what_the_clock_on_the_wall_says(where, cron):
    """Compare with every minute of three days, each looked at for itself."""
    zone, moment = where
    begin = moment.replace(second=0, microsecond=0) - timedelta(days=1)
    moments = [begin + timedelta(minutes=number) for number in range(3 * 1440)]
    fires = set(
        takewhile(lambda fire: fire <= moments[-1], Timing(cron, None, zone).fires(begin - timedelta(seconds=1)))
    )
    every_hour = cron.split()[1] == "*"
    times = CronSim(cron, wall(begin, zone) - timedelta(days=2))
    named = set(takewhile(lambda local: local < wall(moments[-1], zone) + timedelta(days=2), times))
    for earlier, one in pairwise([begin - timedelta(minutes=1), *moments]):
        before, local = wall(earlier, zone), wall(one, zone)
        # What the clock jumped over, or has shown already.
        skipped = {before + timedelta(minutes=n) for n in range(1, int((local - before).total_seconds() // 60))}
        again = one.astimezone(ZoneInfo(zone)).fold == 1
        should = local in named if every_hour else (local in named and not again) or bool(skipped & named)

        assert (one in fires) == should, (one, local)


@settings(deadline=None, max_examples=100)
@given(near_a_change(), expressions, st.integers(1, 50), st.timedeltas(timedelta(), timedelta(days=3)))
def test_the_newest_fires_missed_are_those_that_would_have_fired(where, cron, most, outage):
    zone, moment = where
    rule = Timing(cron, None, zone)
    due = rule.after(moment)
    until = due + outage
    all_of_them = [due, *takewhile(lambda fire: fire <= until, rule.fires(due))]

    assert rule.missed(due, due, until, most) == all_of_them[-most:]
    assert rule.following(due, until) == rule.after(until) > until
    since = due + outage / 2
    assert rule.missed(due, since, until, 10_000) == [fire for fire in all_of_them if fire >= since]


def test_the_fire_that_was_written_counts_even_if_the_rules_have_changed_since():
    due, until = datetime(2026, 1, 1, 9, 17, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
    rule = Timing("0 12 * * *", None, "UTC")

    assert rule.missed(due, due, until, 10) == [
        due,
        due.replace(hour=12, minute=0),
        due.replace(hour=12, minute=0, day=2),
    ]
    assert rule.missed(due, due, due, 1) == [due]
    assert rule.missed(due, due + timedelta(seconds=1), due + timedelta(hours=1), 10) == []


@given(st.floats(0.1, 1e6), st.timedeltas(timedelta(), timedelta(days=400)), st.integers(1, 20))
def test_an_interval_is_counted_from_the_fire_that_is_known(every, outage, most):
    due = datetime(2026, 1, 1, tzinfo=UTC)
    until = due + outage
    rule = Timing(None, every, "UTC")
    missed = rule.missed(due, due, until, most)
    interval = timedelta(seconds=every)

    assert rule.following(due, until) > until >= missed[-1]
    assert rule.following(due, until) - missed[-1] == interval
    assert all((fire - due) % interval == timedelta() for fire in missed)
    assert missed[0] == due or len(missed) == most


def test_a_year_of_missed_seconds_is_not_counted_one_by_one():
    due = datetime(2025, 1, 1, tzinfo=UTC)
    until = datetime(2026, 1, 1, tzinfo=UTC)

    assert len(Timing("* * * * * *", None, BERLIN).missed(due, due, until, 100)) == 100
    assert len(Timing(None, 0.1, "UTC").missed(due, due, until, 100)) == 100
