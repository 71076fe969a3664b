"""Schedules: each fire time enqueues once, whoever ticks; what outages, deploys and operators do to them."""

import asyncio
import json
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import asyncpg
import pytest
from support import eventually

from aiopgq import App, Router, current_job
from aiopgq._flow.tick import Ticker
from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.schedules import Schedules
from aiopgq.errors import ArgumentError, ConfigError, JobFailed, ScheduleNotFound

HOUR = timedelta(hours=1)


@pytest.fixture
async def tickers(dsn):
    """Makes tickers, each on a connection of its own."""
    lines = []

    def make(*apps):
        line = Line(ConnectSettings(dsn, "aiopgq"), "test")
        lines.append(line)
        return Ticker(Schedules(line), [one for app in apps for one in app.declared_schedules()])

    yield make
    for line in lines:
        await line.close()


@pytest.fixture
async def jobs(dsn):
    """An opened App with two tasks."""
    jobs = App(dsn)

    @jobs.task(name="greet")
    async def greet(name: str = "you", at: datetime | None = None) -> str:
        return f"{name} {current_job().headers['scheduled_at']}"

    @jobs.task(name="other", queue="slow", priority=7, max_attempts=3, timeout=5)
    async def other(number: int) -> int:
        return number

    jobs.greet, jobs.other = greet, other
    async with jobs:
        yield jobs


async def moments(sql, name="s"):
    """Return the fire times that jobs of a schedule were enqueued for."""
    rows = await sql.fetch("SELECT headers FROM aiopgq.jobs WHERE headers->>'schedule' = $1 ORDER BY place", name)
    return [datetime.fromisoformat(json.loads(row["headers"])["scheduled_at"]) for row in rows]


async def outage(sql, length, name="s"):
    """Let the next fire have been so long ago; return when it was due."""
    return await sql.fetchval(
        "UPDATE aiopgq.schedules SET next_at = clock_timestamp() - $2::interval WHERE name = $1 RETURNING next_at",
        name, length,
    )  # fmt: skip


# Exactly once


async def test_six_tickers_let_thirty_fire_times_fire_thirty_times(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    six = [tickers() for _ in range(6)]
    await asyncio.gather(*(ticker.work() for ticker in six))
    assert await moments(sql) == []

    due = []
    for _ in range(30):
        due.append(await outage(sql, timedelta()))
        await asyncio.gather(*(ticker.work() for ticker in six))

    assert await moments(sql) == due


async def test_six_workers_let_each_tenth_of_a_second_fire_once(jobs, sql, dsn):
    await jobs.schedules.set("s", jobs.other.call(1), every=0.1)
    apps = [App(dsn) for _ in range(6)]
    for app in apps:
        # They tick, and run none of these jobs.
        app.task(name="unrelated")(json.loads)

    async with apps[0], apps[1], apps[2], apps[3], apps[4], apps[5]:
        async with asyncio.TaskGroup() as group:
            workers = [app.worker() for app in apps]
            running = [group.create_task(worker.run()) for worker in workers]
            await eventually(lambda: fired(sql, 30), within=30, what="thirty fire times came")
            for worker in workers:
                worker.stop()
        assert [task.result() for task in running] == [None] * 6
    seen = await moments(sql)

    assert len(seen) >= 30
    assert Counter(seen).most_common(1)[0][1] == 1
    assert {later - one for one, later in pairwise(sorted(seen))} == {timedelta(seconds=0.1)}


async def fired(sql, number):
    return len(await moments(sql)) >= number


async def test_a_schedule_moves_on_only_together_with_its_job(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    await jobs.schedules.set("t", jobs.greet.call(), every=3600)
    await tickers().work()
    for name in ("s", "t"):
        due = await outage(sql, timedelta(), name)
    await sql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE check_violation USING CONSTRAINT = 'mine'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON aiopgq.jobs FOR EACH ROW WHEN (NEW.headers->>'schedule' = 't')"
        " EXECUTE FUNCTION refuse()"
    )

    # One that cannot fire keeps nobody from firing.
    await tickers().work()
    assert len(await moments(sql, "s")) == 1
    assert await moments(sql, "t") == []
    assert (await jobs.schedules.get("t")).next_at == due

    await sql.execute("DROP TRIGGER refuse ON aiopgq.jobs")
    await tickers().work()
    assert await moments(sql, "t") == [due]


async def test_an_uncommitted_edit_is_not_waited_for(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    ticker = tickers()
    await ticker.work()
    due = await outage(sql, timedelta())

    async with sql.transaction():
        await sql.execute("SELECT FROM aiopgq.schedules FOR UPDATE")
        await asyncio.wait_for(ticker.work(), 10)
    assert await moments(sql) == []

    await ticker.work()
    assert await moments(sql) == [due]


# What is enqueued


async def test_a_declared_schedule_runs_its_task_with_its_arguments(dsn, sql):
    jobs = App(dsn)

    @jobs.schedule(every=0.2, arguments={"name": "Ada"})
    @jobs.task(name="greet")
    async def greet(name: str) -> str:
        return f"{name} {current_job().headers['schedule']} {current_job().headers['scheduled_at']}"

    async with jobs, jobs.worker():
        found = await eventually(lambda: completed(jobs), within=30, what="the schedule's job has run")

    assert found.headers["schedule"] == "greet"
    at = datetime.fromisoformat(found.headers["scheduled_at"])
    assert found.result == f"Ada greet {found.headers['scheduled_at']}"
    assert at <= found.created_at < at + timedelta(seconds=30)


async def completed(jobs):
    return next(iter(await jobs.inspector.jobs(status="completed")), None)


async def test_a_schedule_enqueues_what_the_call_said(jobs, sql, tickers):
    call = jobs.other.options(queue="night", priority=-5, max_attempts=2, timeout=None, headers={"trace": "1"}).call(42)
    await jobs.schedules.set("s", call, "@hourly")
    due = await outage(sql, timedelta(seconds=1))
    await tickers().work()

    [job] = await jobs.inspector.jobs()
    assert (job.task, job.queue, job.priority, job.max_attempts, job.args) == ("other", "night", -5, 2, {"number": 42})
    assert job.headers == {"trace": "1", "schedule": "s", "scheduled_at": due.isoformat(timespec="microseconds")}
    assert await sql.fetchval("SELECT timeout FROM aiopgq.jobs") == timedelta()
    assert (await jobs.schedules.get("s")).last_job == job.id
    assert (await jobs.schedules.get("s")).last_at == due


async def test_a_fire_wakes_a_sleeping_worker(jobs, sql, dsn):
    async with jobs.worker(poll_interval=300):
        await eventually(lambda: asleep(sql), within=30, what="the worker sleeps")
        await jobs.schedules.set("s", jobs.greet.call(), every=3600)
        other = Line(ConnectSettings(dsn, "aiopgq"), "test")
        await Ticker(Schedules(other), []).work()
        await outage(sql, timedelta())
        await Ticker(Schedules(other), []).work()
        await other.close()
        await eventually(lambda: completed(jobs), within=30, what="the schedule's job has run")


async def asleep(sql):
    flags = [f"sleepers_{number}" for number in range(16)]
    return await sql.fetchval(
        "SELECT bool_or(last_value > 0) FROM pg_sequences WHERE schemaname = 'aiopgq' AND sequencename = ANY($1)", flags
    )


async def test_the_jobs_of_a_task_nobody_knows_wait_and_are_told_of(jobs, sql, caplog):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    await sql.execute("UPDATE aiopgq.schedules SET task = 'nobody.knows', next_at = clock_timestamp()")

    async with jobs.worker():
        pass
    async with jobs.worker():
        pass

    [job] = await jobs.inspector.jobs()
    assert (job.task, job.status) == ("nobody.knows", "pending")
    assert "1 due jobs of task 'nobody.knows' in queue 'default' have no live worker" in caplog.text


# Misfires


async def test_what_an_outage_missed_is_made_up_for_as_each_schedule_says(jobs, sql, tickers):
    for name, misfire, window in (
        ("skip", "skip", 86400), ("once", "once", 86400), ("all", "all", 86400), ("some", "all", 3 * 3600 + 60),
    ):  # fmt: skip
        await jobs.schedules.set(name, jobs.greet.call(), every=3600, misfire=misfire, window=window)
    await tickers().work()
    first = {name: await outage(sql, timedelta(hours=5, minutes=30), name) for name in ("skip", "once", "all", "some")}

    await tickers().work()

    def fires(name, *hours):
        return [first[name] + hour * HOUR for hour in hours]

    assert await moments(sql, "skip") == []
    assert await moments(sql, "once") == fires("once", 5)
    assert await moments(sql, "all") == fires("all", 0, 1, 2, 3, 4, 5)
    assert await moments(sql, "some") == fires("some", 3, 4, 5)
    for info in await jobs.schedules.list():
        assert info.next_at == first[info.name] + 6 * HOUR


async def test_a_fire_that_comes_in_time_stands_for_those_that_were_missed(jobs, sql, tickers):
    for misfire in ("skip", "once"):
        await jobs.schedules.set(misfire, jobs.greet.call(), every=3600, misfire=misfire)
    await tickers().work()
    first = {name: await outage(sql, timedelta(hours=5, seconds=5), name) for name in ("skip", "once")}

    await tickers().work()

    for name, due in first.items():
        assert await moments(sql, name) == [due + 5 * HOUR]


async def test_the_ticks_of_a_short_hang_all_fire_whatever_the_policy(jobs, sql, tickers):
    for misfire in ("skip", "once", "all"):
        await jobs.schedules.set(misfire, jobs.greet.call(), every=1, misfire=misfire)
    await tickers().work()
    first = {name: await outage(sql, timedelta(seconds=3.5), name) for name in ("skip", "once", "all")}

    await tickers().work()

    for name, due in first.items():
        assert (await moments(sql, name))[:4] == [due + timedelta(seconds=number) for number in range(4)]


async def test_a_long_outage_of_a_busy_schedule_enqueues_no_more_than_a_thousand(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=0.1, misfire="all", window=timedelta(days=400))
    await tickers().work()
    await outage(sql, timedelta(days=365))

    await asyncio.wait_for(tickers().work(), 30)

    assert 1000 <= len(await moments(sql)) < 1300


# Pause, resume, run now, edit, remove


async def test_a_paused_schedule_fires_nothing_and_misses_nothing(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    ticker = tickers()
    await ticker.work()
    await jobs.schedules.pause("s")
    paused = await jobs.schedules.get("s")
    await outage(sql, 3 * HOUR)
    await ticker.work()
    await jobs.schedules.pause("s")
    assert await moments(sql) == []
    assert (await jobs.schedules.get("s")).paused_at == paused.paused_at
    assert paused.next_at is None

    await jobs.schedules.resume("s")
    await ticker.work()

    resumed = await jobs.schedules.get("s")
    assert await moments(sql) == []
    assert resumed.paused_at is None
    assert timedelta(minutes=59) < resumed.next_at - resumed.as_of <= HOUR
    await jobs.schedules.resume("s")
    assert (await jobs.schedules.get("s")).next_at == resumed.next_at


async def test_a_schedule_is_run_now_without_touching_its_fires(jobs):
    await jobs.schedules.set("s", jobs.greet.call("Ada"), "@yearly")
    await jobs.schedules.pause("s")
    before = await jobs.schedules.get("s")

    async with jobs.worker():
        job = await jobs.schedules.run_now("s")
        result = await job.result(30)

    info = await job.info()
    assert result == f"Ada {info.headers['scheduled_at']}"
    assert abs(datetime.fromisoformat(info.headers["scheduled_at"]) - info.created_at) < timedelta(seconds=5)
    after = await jobs.schedules.get("s")
    assert (after.next_at, after.paused_at, after.last_at) == (before.next_at, before.paused_at, None)


async def test_editing_the_times_begins_anew_and_editing_the_call_does_not(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call("Ada"), every=3600)
    ticker = tickers()
    await ticker.work()
    due = await outage(sql, timedelta(hours=-1))

    same = await jobs.schedules.set("s", jobs.greet.call("Bob"), every=3600, misfire="all")
    assert (same.next_at, same.args, same.misfire) == (due, {"name": "Bob"}, "all")

    await sql.execute("UPDATE aiopgq.schedules SET since = since - interval '3 hours'")
    await outage(sql, timedelta(seconds=1))
    edited = await jobs.schedules.set("s", jobs.other.call(1), "*/5 * * * *", timezone="Europe/Berlin")
    await ticker.work()
    assert (edited.task, edited.when, edited.timezone) == ("other", "every 5 minutes, Europe/Berlin", "Europe/Berlin")
    assert edited.next_at.minute % 5 == 0
    assert timedelta() < edited.next_at - edited.as_of <= timedelta(minutes=5)
    assert await moments(sql) == []


async def test_a_worker_that_computed_the_times_of_before_an_edit_fires_nothing(jobs, sql, dsn):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    store = Schedules(line)
    await Ticker(store, []).work()
    await outage(sql, timedelta())
    [seen] = await store.due([], 10)
    fires, next_at = seen.plan()

    # There and back again: next_at is the same.
    await jobs.schedules.set("s", jobs.greet.call(), every=7200)
    await sql.execute("UPDATE aiopgq.schedules SET next_at = $1", seen.next_at)
    assert await store.fire(seen, next_at, [uuid4() for _ in fires], fires) is False
    await line.close()

    assert await moments(sql) == []


async def test_next_fires_are_computed_in_the_zone_of_the_schedule(jobs):
    await jobs.schedules.set("s", jobs.greet.call(), "30 2 * * *", timezone="America/New_York")
    here = (await jobs.schedules.next("s", 400))[0].tzinfo
    fires = await jobs.schedules.next("s", 400)

    assert here is UTC
    assert all(later > fire for fire, later in pairwise(fires))
    assert {(fire.hour, fire.minute) for fire in fires} == {(6, 30), (7, 30), (7, 0)}
    assert (await jobs.schedules.next("s"))[0] == (await jobs.schedules.get("s")).next_at


async def test_a_removed_schedule_fires_no_more_and_is_not_found(jobs, sql, tickers):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    await outage(sql, timedelta())
    await jobs.schedules.remove("s")
    await tickers().work()

    assert await moments(sql) == []
    assert await jobs.schedules.list() == []
    schedules = jobs.schedules
    for asked in (
        schedules.get,
        schedules.next,
        schedules.pause,
        schedules.resume,
        schedules.run_now,
        schedules.remove,
    ):
        with pytest.raises(ScheduleNotFound, match="There is no schedule 's'"):
            await asked("s")


async def test_a_row_nobody_can_read_is_told_and_keeps_no_other_from_firing(jobs, sql, tickers, caplog):
    for name in ("bad", "s", "lost"):
        await jobs.schedules.set(name, jobs.greet.call(), every=3600)
    await sql.execute("UPDATE aiopgq.schedules SET every = NULL, cron = 'whenever' WHERE name = 'bad'")
    await sql.execute(
        "UPDATE aiopgq.schedules SET every = NULL, cron = '@daily', timezone = 'No/Where' WHERE name = 'lost'"
    )
    await sql.execute("UPDATE aiopgq.schedules SET next_at = clock_timestamp()")
    ticker = tickers()

    await ticker.work()
    await ticker.work()

    assert len(await moments(sql)) == 1
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert sorted(one.partition(",")[0] for one in said) == [
        "schedule 'bad' cannot fire", "schedule 'lost' cannot fire",
    ]  # fmt: skip
    bad, lost, _ = await jobs.schedules.list()
    assert bad.when == "whenever"
    assert "'whenever' is no cron expression" in bad.trouble
    assert "'No/Where' is no time zone" in lost.trouble
    assert (bad.next_at, lost.next_at) == (None, None)


# Declared


def declaring(dsn, *lines, task="greet", **extra):
    """Return an App whose code declares schedules, each an expression with options."""
    app = App(dsn)

    async def function(name: str = "you") -> None: ...

    face = app.task(name=task)(function)
    for cron, options in lines:
        app.schedule(cron, **options)(face)
    return app


async def test_a_pause_of_an_operator_survives_deploys_and_edits_of_the_code_take_effect(dsn, jobs, tickers):
    await tickers(declaring(dsn, ("@daily", {}), ("@hourly", {"name": "second"}))).work()
    await jobs.schedules.pause("greet")
    first, second = await jobs.schedules.list()
    assert [(one.name, one.cron, one.declared) for one in (first, second)] == [
        ("greet", "@daily", True), ("second", "@hourly", True),
    ]  # fmt: skip

    await tickers(declaring(dsn, ("@weekly", {}), ("@hourly", {"name": "second", "misfire": "skip"}))).work()

    changed, kept = await jobs.schedules.list()
    assert (changed.cron, changed.paused_at) == ("@weekly", first.paused_at)
    assert (kept.misfire, kept.next_at, kept.created_at) == ("skip", second.next_at, second.created_at)


async def test_a_schedule_that_left_the_code_fires_only_while_somebody_still_declares_it(dsn, jobs, sql, tickers):
    old, new = tickers(declaring(dsn, ("@daily", {"name": "s"}))), tickers(declaring(dsn))
    await old.work()
    await outage(sql, timedelta(seconds=1))
    await new.work()
    assert len(await moments(sql)) == 1

    # Nobody has declared it for a while.
    await jobs.schedules.set("t", jobs.greet.call(), every=3600)
    await sql.execute("UPDATE aiopgq.schedules SET seen_at = clock_timestamp() - interval '6 minutes'")
    await outage(sql, timedelta(seconds=1))
    await outage(sql, timedelta(seconds=1), "t")
    await new.work()
    assert (len(await moments(sql)), len(await moments(sql, "t"))) == (1, 1)
    assert (await jobs.schedules.get("s")).orphaned

    # Whoever declares it says so, and finds what was missed.
    await old.work()
    assert len(await moments(sql)) == 2
    assert not (await jobs.schedules.get("s")).orphaned


async def test_of_two_apps_that_declare_one_name_the_one_that_started_last_is_right(dsn, jobs, tickers, caplog):
    caplog.set_level(logging.INFO, "aiopgq.tick")
    one, other = declaring(dsn, ("@daily", {"name": "s"})), declaring(dsn, ("@hourly", {"name": "s"}), task="other")
    await tickers(one).work()
    await tickers(other).work()
    info = await jobs.schedules.get("s")
    assert (info.task, info.cron) == ("other", "@hourly")
    assert caplog.messages[-1] == "schedule 's' changed: task other, at the start of every hour"

    both = declaring(dsn, ("@daily", {"name": "s"}))
    both.schedule("@daily", name="s")(both.task(name="second")(lambda: None))
    with pytest.raises(ConfigError, match=r"'s' is taken; give the one of .*test_schedules\.py"):
        both.declared_schedules()


async def test_code_and_run_time_do_not_take_names_from_each_other(dsn, jobs, tickers, sql, caplog):
    await jobs.schedules.set("mine", jobs.other.call(1), "@daily")
    ticker = tickers(declaring(dsn, ("@hourly", {"name": "mine"}), ("@hourly", {"name": "code"})))
    await ticker.work()

    assert (await jobs.schedules.get("mine")).task == "other"
    assert "schedule 'mine' is declared, and one of that name was made at run time" in caplog.text
    with pytest.raises(ConfigError, match="'code' is declared in code"):
        await jobs.schedules.set("code", jobs.other.call(1), "@daily")
    assert (await jobs.schedules.get("code")).task == "greet"

    # What has left the code may be taken over.
    await sql.execute("UPDATE aiopgq.schedules SET seen_at = clock_timestamp() - interval '6 minutes'")
    assert not (await jobs.schedules.set("code", jobs.other.call(1), "@daily")).declared


async def test_schedules_of_a_router_get_its_prefix(dsn, tickers, jobs):
    app, mail = App(dsn), Router(queue="mail")

    @mail.schedule("@daily", timezone="Europe/Berlin")
    @mail.schedule("@hourly", name="by the hour", arguments={"to": "eve"})
    @mail.task(name="send")
    async def send(to: str = "ada") -> None: ...

    app.include(mail, prefix="mail.")
    await tickers(app).work()

    assert [(one.name, one.task, one.queue, one.args) for one in await jobs.schedules.list()] == [
        ("by the hour", "mail.send", "mail", {"to": "eve"}),
        ("mail.send", "mail.send", "mail", {}),
    ]


def test_what_cannot_be_a_schedule_is_refused_where_it_is_declared():
    jobs = App("postgresql://nowhere/none")

    @jobs.task(name="send")
    async def send(to: str) -> None: ...

    for declare, error, said in (
        (lambda: jobs.schedule("61 * * * *"), ConfigError, "'61 \\* \\* \\* \\*' is no cron expression: Bad minute"),
        (lambda: jobs.schedule("@daily", timezone="Europe/Berlim"), ConfigError, "'Europe/Berlim' is no time zone"),
        (lambda: jobs.schedule("@daily", every=5), ConfigError, "one of the two"),
        (lambda: jobs.schedule("@daily", misfire="never"), ConfigError, "'skip', 'once' or 'all', not 'never'"),
        (lambda: jobs.schedule("@daily", window=-1), ConfigError, "window"),
        (lambda: jobs.schedule("@daily", name=""), ConfigError, "1 to 200 bytes"),
        (lambda: jobs.schedule("@daily", arguments=[1]), ConfigError, "takes a mapping of names, not list"),
        (lambda: jobs.schedule("@daily")(send), ArgumentError, "Task 'send': .*missing a required argument: 'to'"),
        (lambda: jobs.schedule("@daily", arguments={"too": 1})(send), ArgumentError, "'to'|'too'"),
        (lambda: jobs.schedule("@daily")(lambda: None), ConfigError, "stands above a task"),
        (lambda: jobs.schedule("@daily")(send.options(delay=5)), ConfigError, "stands above a task"),
    ):
        with pytest.raises(error, match=said):
            declare()

    jobs.schedule("@daily", arguments={"to": "ada"})(send)
    with pytest.raises(ConfigError, match="task 'send' has such a schedule already"):
        jobs.schedule("@hourly", arguments={"to": "eve"})(send)


async def test_arguments_of_the_wrong_type_keep_the_worker_from_starting(dsn):
    jobs = App(dsn)

    @jobs.schedule("@daily", arguments={"to": "Ada"})
    @jobs.task(name="send")
    async def send(to: int) -> None: ...

    async with jobs:
        with pytest.raises(ArgumentError, match="Task 'send', parameter 'to'"):
            async with jobs.worker():
                pass


async def test_what_makes_no_sense_at_run_time_is_refused(jobs):
    for call, said in (
        (jobs.greet.options(delay=5).call(), "no id, delay, run_at or connection"),
        (jobs.greet.options(run_at=datetime(2030, 1, 1, tzinfo=UTC)).call(), "no id, delay"),
    ):
        with pytest.raises(ConfigError, match=said):
            await jobs.schedules.set("s", call, "@daily")
    with pytest.raises(TypeError, match=r"made by task\.call"):
        await jobs.schedules.set("s", jobs.greet, "@daily")
    with pytest.raises(ConfigError, match="is no cron expression"):
        await jobs.schedules.set("s", jobs.greet.call(), "daily")
    assert await jobs.schedules.list() == []


# Roles


async def test_workers_may_do_all_of_it_readers_look_and_producers_nothing(dsn, sql, jobs):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    name = f"role_{uuid4().hex}"
    for kind, table, function in (("producer", False, False), ("reader", True, False), ("worker", True, True)):
        role = f"{name}_{kind}"
        await sql.execute(f"CREATE ROLE {role}; SELECT aiopgq.grant_{kind}('{role}')")
        try:
            await sql.execute(f"SET ROLE {role}")
            for allowed, statement in (
                (table, "SELECT name FROM aiopgq.schedules"),
                (function, "SELECT aiopgq.look_at_schedules('{}', '{}', 300)"),
                (function, "SELECT aiopgq.run_schedule('s', gen_random_uuid())"),
                (function, "UPDATE aiopgq.schedules SET paused_at = now()"),
                (function, "DELETE FROM aiopgq.schedules WHERE name = 'none'"),
            ):
                if allowed:
                    await sql.execute(statement)
                else:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await sql.execute(statement)
        finally:
            await sql.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


# The worker's rhythm


async def test_a_worker_that_knows_of_nothing_near_looks_every_fifteen_seconds_at_most(jobs, sql, tickers):
    assert 15 <= await tickers().work() <= 18
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    assert 15 <= await tickers().work() <= 18
    await outage(sql, timedelta(seconds=-5))
    assert 0 < await tickers().work() <= 5
    await jobs.schedules.pause("s")
    assert 15 <= await tickers().work() <= 18


async def test_a_burst_fires_what_is_due_before_it_ends(jobs, sql):
    await jobs.schedules.set("s", jobs.greet.call(), every=3600)
    await outage(sql, timedelta())

    await jobs.drain()

    assert (await completed(jobs)).headers["schedule"] == "s"


async def test_a_job_of_a_schedule_that_fails_is_a_dead_letter_like_any_other(jobs, sql):
    @jobs.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("broken")

    await jobs.schedules.set("s", fail.call(), every=3600)
    await outage(sql, timedelta())

    with pytest.raises(JobFailed, match="broken"):
        await jobs.drain()
