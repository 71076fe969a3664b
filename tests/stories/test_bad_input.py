"""Bad input fails where it is made, before any SQL; good input comes back as it went, through a real worker."""

import dataclasses
import enum
import json
import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pydantic
import pytest

from aiopgq import App
from aiopgq.errors import ArgumentError, ConfigError, JobFailed, TaskNotIncluded, UsageError

MIB = 1024 * 1024

# Never opened, and no server is there: whatever these calls raise comes from before any SQL.
nowhere = App("postgresql://nobody@127.0.0.1:1/nowhere")


@dataclasses.dataclass
class Item:
    sku: str
    price: Decimal


@nowhere.task(name="typed")
async def typed(n: int, name: str = "x", *, flag: bool = False) -> None: ...


@nowhere.task(name="anything")
async def anything(value: Any) -> None: ...


@nowhere.task(name="order")
async def order(items: list[Item], at: datetime | None = None) -> None: ...


@nowhere.task(name="mapping")
async def mapping(names: dict[str, int]) -> None: ...


def loop_of_lists():
    endless = [1]
    endless.append(endless)
    return endless


def nested(depth):
    value = "core"
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def dsn(emptied_dsn):
    return emptied_dsn


@pytest.fixture
async def connection(dsn):
    """A connection in a transaction; `connection.sent` holds what was sent since."""
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    with connection.query_logger(lambda query: sent.append(query.query)):
        sent = []
        yield connection, sent
    await transaction.rollback()
    await connection.close()


async def refused(enqueue, task, parameter, reason):
    """Check that a call fails with an error that names the task, the parameter and the reason."""
    with pytest.raises(ArgumentError) as told:
        await enqueue()
    error = told.value
    assert isinstance(error, TypeError)
    assert (error.task, error.parameter) == (task, parameter)
    assert re.search(reason, error.reason)
    assert all(str(fact) in str(error) for fact in (task, parameter or "", error.reason))


# Wrong calls.

WRONG_CALLS = {
    "missing": (typed, (), {}, "n", "is missing"),
    "too many": (typed, (1, "a", True), {}, None, "at most 2 positional arguments, 3 were given"),
    "unknown": (typed, (1,), {"nmae": "x"}, "nmae", "no such parameter; the task takes n, name, flag"),
    "twice": (typed, (1,), {"n": 2}, "n", "given twice"),
    "str for int": (typed, ("1",), {}, "n", "expected `int`, got `str`"),
    "float for int": (typed, (1.5,), {}, "n", "expected `int`, got `float`"),
    "bool for int": (typed, (True,), {}, "n", "expected `int`, got `bool`"),
    "None for int": (typed, (None,), {}, "n", "expected `int`"),
    "int for str": (typed, (1, 2), {}, "name", "expected `str`, got `int`"),
    "int for bool": (typed, (1,), {"flag": 1}, "flag", "expected `bool`, got `int`"),
    "wrong inside": (order, ([Item("a", "much")],), {}, "items[0].price", "Decimal|decimal"),
    "dict for dataclass": (order, ([{"sku": "a", "price": 1}],), {}, "items[0]", "Item"),
    "str for datetime": (order, ([], "tomorrow"), {}, "at", "datetime"),
}


@pytest.mark.parametrize(("task", "args", "kwargs", "parameter", "reason"), WRONG_CALLS.values(), ids=WRONG_CALLS)
async def test_a_wrong_call_fails_where_it_is_made(task, args, kwargs, parameter, reason):
    await refused(lambda: task.enqueue(*args, **kwargs), task.name, parameter, reason)


NUL = "U\\+0000"
HINT = "annotate the parameter"
UNSTORABLE = {
    "nan": (float("nan"), "value", "nan.*finite"),
    "infinity": (float("inf"), "value", "inf.*finite"),
    "-infinity": (float("-inf"), "value", "-inf.*finite"),
    "nan inside": ({"a": [1, {"b": float("nan")}]}, 'value["a"][1]["b"]', "nan"),
    "nan as key": ({float("nan"): 1}, "value[float]", "nan|key"),
    "negative zero": (-0.0, "value", r"-0\.0, which PostgreSQL would change"),
    "negative zero inside": ([1, [-0.0]], "value[1][0]", r"-0\.0"),
    "surrogate": ("a\ud800", "value", "lone surrogate"),
    "surrogate inside": ([{"k": "\udfff"}], 'value[0]["k"]', "lone surrogate"),
    "surrogate as key": ({"\ud800": 1}, 'value["\\ud800"]', "its key .*lone surrogate"),
    "nul": ("\x00", "value", NUL),
    "nul inside": ({"a": ["x\x00y"]}, 'value["a"][0]', NUL),
    "nul as key": ({"k\x00": 1}, 'value["k\\x00"]', f"its key .*{NUL}"),
    "object": (object(), "value", "type object cannot be stored"),
    "function": (len, "value", "cannot be stored"),
    "generator": ((n for n in ()), "value", "type generator cannot be stored"),
    "object inside": ({"a": [object()]}, 'value["a"][0]', "type object"),
    "refers to itself": (loop_of_lists(), "value[1]", "refers to itself"),
    "nested deeply": (nested(300), None, "nested"),
    "int keys": ({1: "a"}, "value[1]", "key would come back as a str"),
    "colliding keys": ({1: "a", "1": "b"}, None, "key"),
    "None as key": ({None: 1}, None, "key"),
    "bool as key": ({True: 1}, None, "key"),
    "tuple as key": ({(1, 2): 3}, None, "key"),
    "tuple": ((1, 2), "value", f"tuple would come back as a list; {HINT}"),
    "set": ({1}, "value", f"set would come back as a list; {HINT}"),
    "datetime": (datetime.now(UTC), "value", f"datetime would come back as a str; {HINT}"),
    "uuid": (uuid4(), "value", f"UUID would come back as a str; {HINT}"),
    "decimal": (Decimal("1.1"), "value", f"Decimal would come back as a .*; {HINT}"),
    "bytes": (b"x", "value", f"bytes would come back as a str; {HINT}"),
    "dataclass": (Item("a", Decimal(1)), "value", f"Item would come back as a dict; {HINT}"),
}


@pytest.mark.parametrize(("value", "parameter", "reason"), UNSTORABLE.values(), ids=UNSTORABLE)
async def test_what_would_not_come_back_is_refused_where_it_is_passed(value, parameter, reason):
    with pytest.raises(ArgumentError) as told:
        await anything.enqueue(value)
    error = told.value
    assert error.task == "anything"
    # Of some keys, Python itself cannot say which of the two it is.
    assert error.parameter == parameter or (parameter is None and str(error.parameter).startswith("value"))
    assert re.search(reason, error.reason)
    assert error.task in str(error)
    assert error.reason in str(error)


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": "1"}, {1: 1}, [("a", 1)]])
async def test_a_typed_mapping_is_held_to_its_type(value):
    with pytest.raises(ArgumentError, match="'mapping', parameter 'names"):
        await mapping.enqueue(value)


@pytest.mark.parametrize("text", ["x" * MIB, "é" * (MIB // 2), "\x01" * (MIB // 6)])
async def test_more_than_a_mebibyte_is_refused_with_a_hint(text):
    await refused(
        lambda: anything.enqueue(text),
        "anything",
        None,
        r"are 1,0\d\d,\d\d\d bytes of JSON, the limit is 1,048,576.*pass a reference to it.*max_args_bytes",
    )


async def test_bad_input_sends_no_sql_and_leaves_the_transaction_usable(connection):
    connection, sent = connection
    for task, args, kwargs, *_ in WRONG_CALLS.values():
        with pytest.raises(ArgumentError):
            await task.options(connection=connection).enqueue(*args, **kwargs)
    for value, *_ in UNSTORABLE.values():
        with pytest.raises(ArgumentError):
            await anything.options(connection=connection).enqueue(value)
        with pytest.raises(ArgumentError):
            await nowhere.enqueue_many([anything.call(1), anything.call(value)], connection=connection)
    for chosen, *_ in WRONG_OPTIONS.values():
        with pytest.raises(ArgumentError):
            await anything.options(connection=connection, **chosen).enqueue(1)
    assert sent == []
    await anything.options(connection=connection).enqueue({"good": "input"})
    assert await connection.fetchval("SELECT count(*) FROM aiopgq.jobs") == 1
    assert any("enqueue_jobs" in query for query in sent)


# Wrong options.

EAST = timezone(timedelta(hours=5))
WRONG_OPTIONS = {
    "empty queue": ({"queue": ""}, "queue", "1 to 200 bytes"),
    "long queue": ({"queue": "q" * 201}, "queue", "200 bytes, this one 201"),
    "queue long in bytes": ({"queue": "é" * 101}, "queue", "200 bytes, this one 202"),
    "nul in queue": ({"queue": "a\x00b"}, "queue", "NUL"),
    "surrogate in queue": ({"queue": "\ud800"}, "queue", "surrogate"),
    "int as queue": ({"queue": 1}, "queue", "string, not int"),
    "priority above": ({"priority": 32768}, "priority", "32767"),
    "priority below": ({"priority": -32769}, "priority", "-32768"),
    "float as priority": ({"priority": 1.5}, "priority", "integer"),
    "bool as priority": ({"priority": True}, "priority", "integer"),
    "negative delay": ({"delay": -1}, "delay", "-1"),
    "negative timedelta": ({"delay": timedelta(seconds=-1)}, "delay", "-1"),
    "infinite delay": ({"delay": float("inf")}, "delay", "inf"),
    "nan delay": ({"delay": float("nan")}, "delay", "nan"),
    "delay of ages": ({"delay": 1e12}, "delay", "hundred years"),
    "str as delay": ({"delay": "soon"}, "delay", "not str"),
    "naive run_at": ({"run_at": datetime(2030, 1, 1)}, "run_at", "no time zone"),  # noqa: DTZ001  # the case
    "year 9999": ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "run_at", "9999"),
    "latest run_at": ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at", "9999"),
    "earliest run_at": ({"run_at": datetime.min.replace(tzinfo=UTC)}, "run_at", "1900"),
    "run_at off the calendar": ({"run_at": datetime.min.replace(tzinfo=EAST)}, "run_at", "1900"),
    "date as run_at": ({"run_at": date(2030, 1, 1)}, "run_at", "datetime, not date"),
    "str as run_at": ({"run_at": "2030-01-01T00:00:00Z"}, "run_at", "datetime, not str"),
    "delay and run_at": ({"delay": 1, "run_at": datetime.now(UTC)}, "run_at", "not both"),
    "no attempts": ({"max_attempts": 0}, "max_attempts", "at least 1"),
    "float as attempts": ({"max_attempts": 2.0}, "max_attempts", "integer"),
    "too many attempts": ({"max_attempts": 2**31}, "max_attempts", "2147483648"),
    "no time": ({"timeout": 0}, "timeout", "None is no limit"),
    "negative timeout": ({"timeout": -1}, "timeout", "-1"),
    "infinite timeout": ({"timeout": float("inf")}, "timeout", "inf"),
    "str as headers": ({"headers": "a=b"}, "headers", "mapping"),
    "int in headers": ({"headers": {"a": 1}}, "headers", "strings only, not int"),
    "int as header": ({"headers": {1: "a"}}, "headers", "strings only, not int"),
    "nul in headers": ({"headers": {"a": "\x00"}}, "headers", "cannot store"),
    "surrogate in headers": ({"headers": {"\ud800": "a"}}, "headers", "cannot store"),
    "str as id": ({"id": str(uuid4())}, "id", "UUID, not str"),
}


@pytest.mark.parametrize(("chosen", "parameter", "reason"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
async def test_a_wrong_option_is_refused_where_it_is_given(chosen, parameter, reason):
    async def enqueue():
        await anything.options(**chosen).enqueue(1)

    await refused(enqueue, "anything", parameter, reason)


@pytest.mark.parametrize(
    "chosen",
    [
        {"queue": "q" * 200, "priority": 32767, "delay": 0, "max_attempts": 1, "timeout": 1e-3},
        {"queue": "é" * 100, "priority": -32768, "delay": timedelta(days=36500), "max_attempts": 2**31 - 1},
        {"run_at": datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "timeout": None, "headers": {"": ""}},
        {"run_at": datetime(1900, 1, 1, tzinfo=UTC), "headers": {"k": "\\u0000 é 🎉"}, "timeout": timedelta(days=1)},
    ],
)
async def test_the_last_values_that_are_allowed_are_stored(connection, chosen):
    connection, _ = connection
    await anything.options(connection=connection, **chosen).enqueue(1)
    row = await connection.fetchrow("SELECT queue, priority, max_attempts, headers, run_at FROM aiopgq.jobs")
    assert row["queue"] == chosen.get("queue", "default")
    assert row["priority"] == chosen.get("priority", 100)
    assert row["max_attempts"] == chosen.get("max_attempts", 12)
    assert json.loads(row["headers"] or "null") == chosen.get("headers")
    assert row["run_at"] == chosen.get("run_at", row["run_at"])


def test_what_an_app_is_told_is_checked_as_well():
    for wrong in (
        {"retention": -1},
        {"retention": float("nan")},
        {"queue": ""},
        {"schema": ""},
        {"schema": "a\x00"},
        {"schema": "pg_mine"},
        {"schema": "s" * 49},
    ):
        [setting] = wrong
        with pytest.raises(ConfigError) as told:
            App(**wrong)
        assert told.value.setting == setting


def test_a_task_nobody_knows_is_refused_by_name():
    with pytest.raises(TaskNotIncluded, match=r"'type'.*Did you mean 'typed'"):
        nowhere.task_named("type")
    with pytest.raises(UsageError, match="'' belongs to no App"):
        nowhere.task_named("")


async def test_the_limit_on_arguments_can_be_raised(dsn):
    jobs = App(dsn, max_args_bytes=3 * MIB)

    @jobs.task(name="size")
    async def size(text: str) -> int:
        return len(text)

    async with jobs, jobs.worker():
        assert await (await size.enqueue("x" * 2 * MIB)).result(timeout=30) == 2 * MIB
        with pytest.raises(ArgumentError, match="the limit is 3,145,728"):
            await size.enqueue("x" * 3 * MIB)


# Round trips.


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


class Address(TypedDict):
    street: str
    floor: int


@dataclasses.dataclass(frozen=True)
class Basket:
    id: UUID
    items: tuple[Item, ...]
    gift: "Basket | None" = None


class Shape(msgspec.Struct, tag=True):
    name: str


class Circle(Shape):
    radius: float


class Square(Shape):
    side: int


class User(pydantic.BaseModel):
    name: str
    born: date
    tags: set[str] = set()


KNOWN = UUID("0192f6a0-0000-7000-8000-000000000001")
ROUND_TRIPS = {
    "beyond 2**53": (int, 2**53 + 1),
    "2**64": (int, 2**64),
    "below -2**64": (int, -(2**64) - 1),
    "10**40": (int, 10**40),
    "big ints inside": (dict[str, list[int]], {"id": [9007199254740993, 2**64]}),
    "untyped big int": (Any, {"b": 2**64 + 1, "c": [9007199254740993]}),
    "0.1": (float, 0.1),
    "1e22": (float, 1e22),
    "1e23, untyped": (Any, 1e23),
    "smallest float": (float, 5e-324),
    "largest float": (float, 1.7976931348623157e308),
    "aware datetime": (datetime, datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=EAST)),
    "naive datetime": (datetime, datetime(2026, 2, 3, 4, 5, 6)),  # noqa: DTZ001  # the case
    "date": (date, date(2026, 2, 3)),
    "time": (time, time(4, 5, 6, 789)),
    "timedelta": (timedelta, timedelta(days=-1, microseconds=1)),
    "uuid": (UUID, KNOWN),
    "decimal": (Decimal, Decimal("1.10")),
    "bytes": (bytes, bytes(range(256))),
    "enum": (Colour, Colour.RED),
    "literal": (Literal["a", "b"], "b"),
    "set": (set[int], {1, 2, 3}),
    "frozenset": (frozenset[str], frozenset({"a"})),
    "tuple": (tuple[int, str, None], (1, "a", None)),
    "tuple of any length": (tuple[tuple[int, ...], ...], ((), (1,), (1, 2))),
    "int keys": (dict[int, str], {1: "a", 2: "b"}),
    "uuid keys": (dict[UUID, Decimal], {KNOWN: Decimal("0.5")}),
    "named tuple": (Point, Point(1, 2.5)),
    "typed dict": (Address, {"street": "High St", "floor": 3}),
    "dataclass": (Basket, Basket(KNOWN, (Item("a", Decimal("9.99")),), Basket(KNOWN, ()))),
    "struct": (Circle, Circle("c", 1.5)),
    "union of structs": (list[Circle | Square], [Circle("c", 0.5), Square("s", 2)]),
    "pydantic": (User, User(name="Zoë", born=date(1990, 1, 1), tags={"a", "b"})),
    "pydantic inside": (dict[str, list[User]], {"all": [User(name="x", born=date(2000, 2, 29))]}),
    "address": (IPv4Address, IPv4Address("10.0.0.1")),
    "path": (PurePosixPath, PurePosixPath("/a/b c")),
    "optional": (int | None, None),
    "emoji": (str, "👩‍👩‍👧‍👦 ünï 漢字 \U0010ffff"),
    "literal backslash-u0000": (str, "\\u0000 and \\\\u0000"),
    "control characters": (str, "\x01\x1f\x7f\t\r\n\u2028"),
    "combined and composed": (list[str], ["\u00e9", "e\u0301"]),
    "quotes": (dict[str, str], {"'\"$1%s{}": "\\'\";--"}),
    "empty things": (Any, {"": [], "a": {}, "b": "", "c": None, "d": [False, 0]}),
}


def echo_of(jobs, annotation, seen):
    async def echo(value):
        seen.append(value)
        return value

    echo.__annotations__ = {"value": annotation, "return": annotation}
    return jobs.task(name="echo")(echo)


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS.values(), ids=ROUND_TRIPS)
async def test_the_job_gets_what_was_passed_and_the_caller_what_was_returned(dsn, annotation, value):
    jobs, seen = App(dsn), []
    echo = echo_of(jobs, annotation, seen)
    async with jobs, jobs.worker():
        job = await echo.enqueue(value)
        result = await job.result(timeout=30)
        again = await echo.handle(job.id).result(timeout=30)
    assert [seen[0], result, again] == [value] * 3
    assert {type(seen[0]), type(result), type(again)} == {type(value)}
    assert len(seen) == 1


async def test_digits_are_stored_exactly(dsn, sql):
    jobs = App(dsn)
    echo = echo_of(jobs, dict[str, int], [])
    await echo.options(connection=sql).enqueue({"id": 9007199254740993, "b": 2**64})
    stored = await sql.fetchrow("SELECT args->'value'->>'id', args->'value'->>'b' FROM aiopgq.jobs")
    assert tuple(stored) == ("9007199254740993", "18446744073709551616")


async def test_only_what_was_passed_is_stored(dsn, sql):
    jobs = App(dsn)

    @jobs.task(name="greet")
    async def greet(name: str, *, shout: bool = False, **more: int) -> str:
        return f"{name} {shout} {more}"

    for call in (greet.call("a"), greet.call(name="b", shout=False), greet.call("c", x=1)):
        await jobs.enqueue_many([call], connection=sql)
    stored = [json.loads(row[0]) for row in await sql.fetch("SELECT args FROM aiopgq.jobs ORDER BY place")]
    assert stored == [{"name": "a"}, {"name": "b", "shout": False}, {"name": "c", "x": 1}]
    async with jobs, jobs.worker():
        ids = [row[0] for row in await sql.fetch("SELECT id FROM aiopgq.all_jobs ORDER BY created_at")]
        results = [await greet.handle(job_id).result(timeout=30) for job_id in ids]
    assert results == ["a False {}", "b False {}", "c False {'x': 1}"]


# Results.


async def unawaited():
    return 1


BAD_RESULTS = {
    "object": (object, "object"),
    "function": (lambda: len, "cannot be stored"),
    "generator": (lambda: (n for n in ()), "generator"),
    "loop": (loop_of_lists, "refers to itself|nested"),
    "coroutine": (unawaited, "coroutine"),
    "nan": (lambda: float("nan"), "nan"),
    "infinity": (lambda: [float("inf")], "inf"),
    "nul": (lambda: {"a": "\x00"}, NUL),
    "surrogate": (lambda: "\ud800", "surrogate"),
    "deep": (lambda: nested(300), "nested"),
    "set": (lambda: {1}, "set"),
}


@pytest.mark.filterwarnings("ignore:coroutine 'unawaited' was never awaited:RuntimeWarning")
async def test_a_result_that_cannot_be_stored_fails_its_job_once_and_the_worker_lives_on(dsn):
    jobs = App(dsn)
    runs = []

    @jobs.task(name="give")
    async def give(what: str) -> Any:
        runs.append(what)
        return BAD_RESULTS[what][0]() if what in BAD_RESULTS else what

    async with jobs, jobs.worker(concurrency=3):
        handles = {what: await give.enqueue(what) for what in BAD_RESULTS}
        for what, job in handles.items():
            with pytest.raises(JobFailed, match=f"(?s)result not serialisable: .*({BAD_RESULTS[what][1]})"):
                await job.result(timeout=30)
            assert (await job.info()).attempts == 1
        assert await (await give.enqueue("good")).result(timeout=30) == "good"
    assert sorted(runs) == sorted([*BAD_RESULTS, "good"])


async def test_a_result_of_another_type_than_annotated_is_kept_if_json_holds_it(dsn):
    jobs = App(dsn)

    @jobs.task(name="count")
    async def count() -> int:
        return "many"

    async with jobs, jobs.worker():
        job = await count.enqueue()
        assert await job.result(timeout=30) == "many"
        assert await jobs.handle(job.id).result(timeout=30) == "many"


async def test_an_exception_that_cannot_be_made_again_is_told_by_its_name(dsn):
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__()
            self.sum = one + two

        def __str__(self):
            raise self

    jobs = App(dsn)

    @jobs.task(name="odd", max_attempts=1)
    async def odd() -> None:
        raise Odd(1, 2)

    async with jobs, jobs.worker():
        with pytest.raises(JobFailed, match="Odd"):
            await (await odd.enqueue()).result(timeout=30)
