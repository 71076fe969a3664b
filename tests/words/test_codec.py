import enum
import json
import math
import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from aiopgq._words.codec import Codec, ResultNotEncodable
from aiopgq._words.outcome import Cancel, Fail, Outcome, Retry, Snooze
from aiopgq.errors import ArgumentError, ConfigError

LIMIT = 1 << 20
NAN, INF = float("nan"), float("inf")
KEY = UUID("12345678-1234-5678-1234-567812345678")


def jsonb(text):
    """What PostgreSQL gives back: plain numbers without a negative zero, keys sorted, duplicates dropped."""

    def write(value):
        if isinstance(value, dict):
            keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
            return "{" + ", ".join(f"{json.dumps(key)}: {write(value[key])}" for key in keys) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(write, value)) + "]"
        if isinstance(value, Decimal):
            return format(value or abs(value), "f")
        return json.dumps(value, ensure_ascii=False)

    assert "\x00" not in str(json.loads(text))
    return write(json.loads(text, parse_float=Decimal, parse_constant=pytest.fail))


def codec_for(annotation, **options):
    def task(value): ...

    task.__annotations__ = {"value": annotation, **options}
    return Codec("mail.send", task)


def round_trip(annotation, value):
    codec = codec_for(annotation)
    args, kwargs = codec.decode(jsonb(codec.encode((value,), {}, LIMIT)))
    assert args == ()
    return kwargs["value"]


def refusal(codec, *args, **kwargs):
    with pytest.raises(ArgumentError) as caught:
        codec.encode(args, kwargs, LIMIT)
    assert caught.value.task == codec.task
    return caught.value


def untyped(value):
    return refusal(codec_for(Any), value)


class Color(enum.Enum):
    RED = "red"
    NONE = None


class Level(enum.IntEnum):
    LOW = 1


class Mood(enum.StrEnum):
    GOOD = "good"


@dataclass
class Address:
    street: str
    zip_code: int | None = None


@dataclass
class Person:
    name: str
    addresses: list[Address] = field(default_factory=list)
    note: Any = field(default=None, compare=False)


@dataclass(eq=False)
class Silent:
    size: int


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Event(msgspec.Struct):
    kind: str
    at: datetime


class Node(msgspec.Struct):
    left: "Node | None" = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class User(pydantic.BaseModel):
    id: int
    joined: datetime
    tags: set[str] = set()


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    born: date
    key: UUID


class Aliased(pydantic.BaseModel):
    given: str = pydantic.Field(alias="givenName")


class Private(pydantic.BaseModel):
    id: int
    _lock: Any = pydantic.PrivateAttr(default_factory=object)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int


class Team(pydantic.BaseModel):
    lead: User
    members: list[User] = []


class AdminUser(User):
    level: int = 1


class Hostile:
    def __str__(self):
        raise SystemError

    __repr__ = __str__

    def __eq__(self, other):
        raise SystemError

    __hash__ = None


BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 30, 12, 30, 15, 123456, tzinfo=UTC)
USER = User(id=2**64, joined=NOW, tags={"a", "b"})

TYPED = [
    (int, 0),
    (int, 2**53 + 1),
    (int, 2**64),
    (int, -(2**100)),
    (int, 10**4000),
    (float, 0.0),
    (float, 1.5),
    (float, 1e16),
    (float, 1e22),
    (float, -1e23),
    (float, 5e-324),
    (float, 1e308),
    (float, sys.float_info.max),
    (str, ""),
    (str, "é😀\u2028\x7f\x1f"),
    (str, "\\u0000"),
    (str, "\\\\u0000 \\"),
    (str, "-0.0 and 1e22"),
    (bool, True),
    (None, None),
    (datetime, NOW),
    (datetime, NOW.replace(tzinfo=None)),
    (datetime, datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
    (date, date(2026, 2, 28)),
    (time, time(23, 59, 59, 1)),
    (timedelta, timedelta(days=-3, microseconds=1)),
    (timedelta, timedelta.max),
    (UUID, KEY),
    (Decimal, Decimal("1E+2")),
    (Decimal, Decimal("1.50")),
    (Decimal, Decimal("-0")),
    (bytes, b"\x00\xff\xfe"),
    (Color, Color.RED),
    (Color, Color.NONE),
    (Level, Level.LOW),
    (Mood, Mood.GOOD),
    (Address, Address("Main St", 12345)),
    (Person, Person("Ada", [Address("a"), Address("b", 2)])),
    (Movie, {"title": "Alien", "year": 1979}),
    (Movie, {"title": "Alien"}),
    (Point, Point(1, 2.5)),
    (Event, Event("born", NOW)),
    (Node, Node(Node(Node()))),
    (Cat | Dog, Dog("Rex")),
    (User, USER),
    (list[User], [USER, USER]),
    (User | None, USER),
    (User | None, None),
    (User | Team, Team(lead=USER, members=[USER])),
    (dict[str, User], {"a": USER}),
    (tuple[User, int], (USER, 1)),
    (Strict, Strict(born=date(2026, 1, 1), key=KEY)),
    (Aliased, Aliased(givenName="Ada")),
    (Open, Open(id=1, colour="blue")),
    (Open | str, Open(id=1, colour="blue")),
    (set[int], {1, 2, 3}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[date, ...], (date(2026, 1, 1),)),
    (dict[int, str], {1: "a", 2**64: "b"}),
    (dict[UUID, list[Decimal]], {KEY: [Decimal("0.10")]}),
    (dict[str, float], {"-0.0": 1e22, "1e22": 0.1}),
    (Path, Path("/tmp/a b/ü")),  # noqa: S108  # a name only
    (Path | None, None),
    (list[PurePosixPath], [PurePosixPath("a/b")]),
    (IPv4Address, IPv4Address("10.0.0.1")),
    (IPv6Network, IPv6Network("2001:db8::/32")),
    (object, {"a": 1}),
    (Literal["a", "b"], "b"),
    (Literal[1] | None, None),
    (int | None, None),
    (int | str, "5"),
    (int | float, 5),
    (int | float, 5.0),
    (UUID | str, KEY),
    (UUID | str, "no uuid"),
    (datetime | date, date(2026, 1, 1)),
    (complex, 1 + 2j),
    (Annotated[int, msgspec.Meta(gt=3)], 4),
    (Sequence[int], [1, 2]),
]


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=lambda part: f"{str(part)[:40]!a}")
def test_an_annotated_value_comes_back_equal_and_of_the_same_type(annotation, value):
    back = round_trip(annotation, value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, int | float | str | Decimal):
        assert repr(back) == repr(value)


@pytest.mark.parametrize("value", [[1.0, 2**64, "é", None, True], {"a": {"b": [1e23, 1.5, {}]}}, 1e308, 10**400])
def test_an_untyped_json_value_comes_back_as_it_went(value):
    back = round_trip(Any, value)
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize("moment", [datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)])
def test_a_moment_in_the_repeated_hour_is_the_same_moment(moment):
    assert round_trip(datetime, moment).timestamp() == moment.timestamp()


def test_an_object_without_equality_is_compared_by_its_fields():
    assert round_trip(Silent, Silent(3)).size == 3


def test_private_attributes_of_a_model_are_made_anew():
    assert round_trip(Private, Private(id=1)).id == 1


def test_a_decimal_nan_is_kept():
    assert round_trip(Decimal, Decimal("NaN")).is_nan()


def test_an_int_for_a_float_is_accepted_as_an_equal_float():
    assert round_trip(float, 1) == 1.0
    assert refusal(codec_for(float), 2**53 + 1).parameter == "value"


def test_subclasses_of_str_int_and_float_come_back_as_an_equal_base():
    class Text(str):
        __slots__ = ()

        def __str__(self):
            raise SystemError

    class Number(float):
        __slots__ = ()

    class Whole(int):
        __slots__ = ()

    assert round_trip(str, Text("a")) == "a"
    assert round_trip(float, Number(1e22)) == 1e22
    assert round_trip(int, Whole(2**70)) == 2**70
    assert round_trip(int, Level.LOW) == 1
    assert round_trip(dict[str, Any], {Mood.GOOD: Mood.GOOD}) == {"good": "good"}


def test_only_what_was_passed_is_stored_and_defaults_apply_when_the_job_runs():
    def task(user_id: int, locale: str = "en", *, urgent: bool = False): ...

    codec = Codec("t", task)
    assert codec.encode((1,), {}, LIMIT) == '{"user_id":1}'
    assert codec.encode((1,), {"urgent": True}, LIMIT) == '{"user_id":1,"urgent":true}'
    assert codec.encode((), {"locale": "de", "user_id": 1}, LIMIT) == '{"locale":"de","user_id":1}'
    assert codec.decode('{"user_id": 1}') == ((), {"user_id": 1})


def test_a_task_without_parameters_stores_an_empty_object():
    codec = Codec("t", lambda: None)
    assert codec.encode((), {}, LIMIT) == "{}"
    assert codec.decode("{}") == ((), {})


def test_a_required_keyword_only_argument_is_required():
    def task(a: int = 1, *, b: int): ...

    assert refusal(Codec("t", task), 1).parameter == "b"


@pytest.mark.parametrize(
    ("args", "kwargs", "parameter", "reason"),
    [
        ((), {}, "a", "is missing"),
        ((1,), {}, "b", "is missing"),
        ((1, "x", 1.5, 4), {}, None, "at most 3 positional"),
        ((1, "x"), {"a": 1}, "a", "given twice"),
        ((1, "x"), {"d": 1}, "d", "takes a, b, c"),
        (("5", "x"), {}, "a", "expected `int`, got `str`"),
        ((True, "x"), {}, "a", "expected `int`, got `bool`"),
        ((1.0, "x"), {}, "a", "expected `int`, got `float`"),
        ((None, "x"), {}, "a", "got `NoneType`"),
        ((1, b"x"), {}, "b", "bytes would come back as a str"),
        ((1, NOW), {}, "b", "datetime would come back as a str"),
        ((1, "x", True), {}, "c", "expected `float`, got `bool`"),
        ((1, "x", NAN), {}, "c", "is nan"),
        ((1, "x", INF), {}, "c", "is inf"),
        ((1, "x", -INF), {}, "c", "is -inf"),
        ((1, "x", -0.0), {}, "c", "is -0.0"),
        ((1, "a\x00b"), {}, "b", "U+0000"),
        ((1, "\ud800"), {}, "b", "lone surrogate"),
        ((10**5000, "x"), {}, "a", "too many digits"),
    ],
)
def test_a_call_that_does_not_fit_names_the_parameter_and_the_reason(args, kwargs, parameter, reason):
    def task(a: int, b: str, c: float = 1.0): ...

    error = refusal(Codec("t", task), *args, **kwargs)
    assert error.parameter == parameter
    assert reason in error.reason


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, "2026-01-01T00:00:00Z"),
        (UUID, str(KEY)),
        (Decimal, "1.5"),
        (Decimal, 0.1),
        (bytes, "YQ=="),
        (Color, "red"),
        (Address, {"street": "a"}),
        (User, USER.model_dump()),
        (User, AdminUser(id=1, joined=NOW)),
        (Movie, {"title": "a", "seen": True}),
        (list[int], (1, 2)),
        (Sequence[int], (1, 2)),
        (list[str], ["a", 1]),
        (list[str], "ab"),
        (set[int], [1, 1]),
        (Literal["a"], "b"),
        (Annotated[int, msgspec.Meta(gt=3)], 3),
        (date, NOW),
        (Path, "/a"),
        (UUID | str, str(KEY)),
        (float | None, NAN),
        (float | str | None, INF),
        (list[float | None], [1.0, NAN]),
        (Person, Person("a", note=NAN)),
        (Person, Person("a", note=(1,))),
        (Silent, Silent("3")),
        (User, User.model_construct(id="x", joined=NOW)),
        (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=7)))),
    ],
    ids=lambda part: f"{str(part)[:40]!a}",
)
def test_a_value_that_would_come_back_as_another_is_refused(annotation, value):
    assert refusal(codec_for(annotation), value).parameter.startswith("value")


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -0.0, "\x00", "a\x00", "\ud800", {"k\x00": 1}, {"\ud800": 1}])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda bad: bad, "value"),
        (lambda bad: [1, bad], "value[1]"),
        (lambda bad: {"x": [bad]}, 'value["x"][0]'),
        (lambda bad: {"a b": {"c": bad}}, 'value["a b"]["c"]'),
    ],
)
def test_what_postgresql_would_refuse_or_change_is_refused_at_the_call_site_with_its_path(bad, wrap, path):
    assert untyped(wrap(bad)).parameter.startswith(path)


def test_a_nul_is_found_inside_objects_too():
    assert refusal(codec_for(Address), Address("a\x00")).parameter == "value.street"
    assert refusal(codec_for(User), User(id=1, joined=NOW, tags={"\x00"})).parameter == "value.tags[0]"
    assert refusal(codec_for(Event), Event("\x00", NOW)).parameter == "value.kind"
    assert refusal(codec_for(Point | None), Point(1, -0.0)).parameter == "value[1]"


def test_a_nul_key_is_shown_escaped():
    assert untyped({"a\x00": 1}).parameter == 'value["a\\x00"]'


def test_a_nan_in_a_key_is_refused():
    assert refusal(codec_for(dict[float, int]), {NAN: 1}).parameter.startswith("value")


@pytest.mark.parametrize("value", [{1: "a"}, {None: 1}, {True: 1}, {1: "a", "1": "b"}, {(1, 2): 3}, {KEY: 1}, {1.5: 1}])
def test_a_key_that_json_would_change_is_refused(value):
    assert "key" in untyped(value).reason
    assert "key" in untyped([value]).reason


@pytest.mark.parametrize("value", [(1, 2), {1}, frozenset(), [(1,)], {"a": ()}, Point(1, 2.0)])
def test_what_would_come_back_as_a_list_is_refused_without_a_type(value):
    error = untyped(value)
    assert "would come back as a list" in error.reason
    assert "annotate the parameter" in error.reason


@pytest.mark.parametrize("value", [NOW, KEY, Decimal(1), b"", Color.RED, Address("a"), USER, Event("a", NOW), Path()])
def test_an_object_without_a_type_is_refused_with_the_remedy(value):
    assert "annotate the parameter" in untyped({"a": value}).reason


async def coroutine(): ...


@pytest.mark.parametrize("value", [object(), lambda: 1, (n for n in ()), Hostile(), range(3), int, sys])
def test_what_cannot_be_encoded_is_refused_by_its_type(value):
    error = untyped(["a", {"b": value}])
    assert error.parameter == 'value[1]["b"]'
    assert "cannot be stored as JSON" in error.reason


def test_a_forgotten_await_is_named():
    forgotten = coroutine()
    assert "coroutine" in untyped(forgotten).reason
    forgotten.close()


def test_a_hostile_object_cannot_break_the_refusal():
    assert "Hostile" in refusal(codec_for(int), Hostile()).reason
    assert "Hostile" in refusal(codec_for(Address), Address(Hostile())).reason

    class Disguised(Hostile):
        @property
        def __class__(self):
            raise SystemError

    assert "Disguised" in untyped([Disguised()]).reason

    @dataclass
    class Liar:
        n: Any

        def __eq__(self, other):
            raise SystemError

        __hash__ = None

    assert "would come back as a dict" in untyped(Liar(1)).reason
    assert refusal(codec_for(Liar), Liar((1,))).parameter == "value.n"
    assert round_trip(Liar, Liar(1)).n == 1


def test_a_self_reference_is_refused():
    loop: list[Any] = []
    loop.append({"a": loop})
    error = untyped(loop)
    assert error.parameter == 'value[0]["a"]'
    assert "itself" in error.reason


@pytest.mark.parametrize("depth", [250, 900, 100_000])
def test_absurd_nesting_is_refused_whatever_the_stack_allows(depth):
    value: Any = []
    for _ in range(depth):
        value = [value] if depth % 2 else {"a": value}
    assert "deep" in untyped(value).reason
    assert len(str(untyped(value))) < 500


def test_stored_nesting_beyond_any_stack_is_refused():
    # Python 3.13 goes thousands of levels deep where 3.11 gives up.
    with pytest.raises(ArgumentError, match="deep"):
        codec_for(Any).decode('{"value":' + "[" * 100_000 + "]" * 100_000 + "}")


def test_nesting_is_measured_without_the_brackets_in_strings():
    value = ["[" * 500, "]{" * 500, '"[\\' * 500, [[{"a": []}]] * 300]
    assert round_trip(Any, value) == value
    deep: Any = "["
    for _ in range(150):
        deep = [deep]
    assert round_trip(Any, deep) == deep


def test_a_call_above_the_limit_is_refused_with_size_limit_and_hint():
    def task(text: str): ...

    codec = Codec("t", task)
    with pytest.raises(ArgumentError, match=r"1,011 bytes .* limit is 1,000.*reference.*max_args_bytes") as caught:
        codec.encode(("x" * 1000,), {}, 1000)
    assert caught.value.parameter is None
    assert codec.encode(("x" * 989,), {}, 1000)
    with pytest.raises(ArgumentError):
        codec.encode(("é" * 600,), {}, 1000)
    with pytest.raises(ArgumentError):
        codec_for(list[int]).encode(([1] * 1000,), {}, 1000)


def test_keyword_arguments_of_any_name_are_allowed_and_checked():
    def task(a: int, **rest: date): ...

    codec = Codec("t", task)
    text = jsonb(codec.encode((1,), {"b": date(2026, 1, 1), "a b": date(2026, 1, 2)}, LIMIT))
    assert codec.decode(text) == ((), {"a": 1, "b": date(2026, 1, 1), "a b": date(2026, 1, 2)})
    assert refusal(codec, 1, b=5).parameter == "b"
    with pytest.raises(ArgumentError) as caught:
        codec.decode('{"a": 1, "b": 5}')
    assert caught.value.parameter == "b"


def test_a_fault_deep_in_a_keyword_argument_is_named_with_its_path():
    def task(**rest: list[date]): ...

    with pytest.raises(ArgumentError) as caught:
        Codec("t", task).decode('{"days": ["2026-01-01", 5]}')
    assert caught.value.parameter == "days[1]"


def test_untyped_keyword_arguments_are_lossless():
    def task(**rest): ...

    codec = Codec("t", task)
    assert refusal(codec, x=(1,)).parameter == "x"
    assert codec.decode(codec.encode((), {"x": [1]}, LIMIT)) == ((), {"x": [1]})
    assert "U+0000" in refusal(codec, **{"a\x00": 1}).reason


def test_keyword_arguments_read_by_pydantic_work():
    def task(**rest: UUID | str): ...

    codec = Codec("t", task)
    assert codec.decode(jsonb(codec.encode((), {"a": KEY, "b": "x"}, LIMIT)))[1] == {"a": KEY, "b": "x"}


def test_positional_only_arguments_come_back_by_position():
    def task(a: int, b: int = 2, /, c: int = 3): ...

    codec = Codec("t", task)
    assert codec.decode(codec.encode((1,), {}, LIMIT)) == ((1,), {})
    assert codec.decode(codec.encode((1, 5), {"c": 6}, LIMIT)) == ((1, 5), {"c": 6})
    assert "positional-only" in refusal(codec, a=1).reason


def test_a_positional_only_argument_left_out_before_a_stored_one_gets_its_default():
    def task(a: int = 1, b: int = 2, /): ...

    assert Codec("t", task).decode('{"b": 5}') == ((1, 5), {})


def test_stored_arguments_of_a_removed_parameter_are_ignored():
    def task(a: int): ...

    assert Codec("t", task).decode('{"a": 1, "removed": [1]}') == ((), {"a": 1})


@pytest.mark.parametrize(
    ("text", "parameter", "reason"),
    [
        ("{}", "a", "is missing"),
        ('{"a": "x"}', "a", "expected `int`, got `str`"),
        ('{"a": 1, "b": [{"street": 1}]}', "b[0].street", "expected `str`"),
        ('{"a": 1, "b": [{}]}', "b[0]", "missing required field `street`"),
        ('{"a": 1, "user": {"id": 1}}', "user", "joined: Field required"),
        ('{"a": 1, "path": 5}', "path", "expected"),
        ('{"a": 1, "either": 5}', "either", "uuid"),
        ("[]", None, "expected `object`"),
        ("nonsense", None, "malformed"),
    ],
)
def test_stored_arguments_that_no_longer_fit_name_the_parameter(text, parameter, reason):
    def task(a: int, b: Sequence[Address] = (), user: User = USER, path: Path = Path(), either: UUID | date = KEY): ...

    with pytest.raises(ArgumentError) as caught:
        Codec("t", task).decode(text)
    assert caught.value.parameter == parameter
    assert reason.lower() in caught.value.reason.lower()


def test_a_class_that_fails_while_it_is_built_is_an_argument_error():
    @dataclass
    class Picky:
        n: int

        def __post_init__(self):
            if self.n == 3:
                raise KeyError(Hostile())

    with pytest.raises(ArgumentError, match="KeyError"):
        codec_for(Picky).decode('{"value": {"n": 3}}')


def test_messages_never_show_a_value():
    secret = "hunter2"  # noqa: S105  # it must not be seen
    for annotation in (int, User, UUID | date, Literal["a"], Path | None, list[int], Color):
        assert secret not in str(refusal(codec_for(annotation), secret))
        assert secret not in str(refusal(codec_for(annotation), [secret]))


def test_var_positional_parameters_are_refused_at_decoration():
    def task(*ids): ...

    with pytest.raises(ConfigError, match=r"'ids'.*list"):
        Codec("t", task)


@pytest.mark.parametrize(
    "annotation", [int | Hostile, Hostile, list[Hostile], dict[str, Hostile] | None, Address | Event]
)
def test_a_type_that_cannot_travel_is_refused_at_decoration(annotation):
    with pytest.raises(ConfigError, match="parameter 'value'"):
        codec_for(annotation)
    with pytest.raises(ConfigError, match="return value"):
        codec_for(int, **{"return": annotation})


def test_an_ordered_dict_is_refused_since_jsonb_has_no_order():
    with pytest.raises(ConfigError, match="order"):
        codec_for(OrderedDict[str, int])


def test_a_type_defined_later_is_resolved_at_first_use():
    scope: dict[str, Any] = {}
    source = "def task(x: 'Later', y: 'Later | None' = None) -> 'Retry': ..."
    exec(compile(source, "later", "exec"), scope)  # noqa: S102  # a module of its own
    codec = Codec("t", scope["task"])
    assert codec.outcome_only is False
    with pytest.raises(ConfigError, match=r"'x'.*'Later' is not defined.*TYPE_CHECKING"):
        codec.encode((1,), {}, LIMIT)
    with pytest.raises(ConfigError):
        codec.decode("{}")
    scope["Later"], scope["Retry"] = date, Retry
    assert codec.outcome_only is True
    assert codec.decode(codec.encode((date.min,), {}, LIMIT)) == ((), {"x": date.min})


def test_a_type_defined_right_after_the_task_is_found_by_the_first_call():
    scope: dict[str, Any] = {}
    exec("def task(x: 'Later'): ...", scope)  # noqa: S102  # a module of its own
    codec = Codec("t", scope["task"])
    scope["Later"] = date
    assert codec.encode((date.min,), {}, LIMIT) == '{"x":"0001-01-01"}'


def test_a_malformed_annotation_is_refused_at_decoration():
    with pytest.raises(ConfigError, match="annotations"):
        codec_for("1 +")


@pytest.mark.parametrize("annotation", [Retry, Outcome, Retry | Snooze, Cancel | Fail])
def test_a_function_that_returns_outcomes_only_is_recognised(annotation):
    assert codec_for(int, **{"return": annotation}).outcome_only


@pytest.mark.parametrize(
    ("annotation", "returns"),
    [
        (str | Retry, str),
        (Outcome | int | None, int | None),
        (None, type(None)),
        (NoReturn, None),
        (Any, Any),
        (list[int], list[int]),
        (dict[str, int], dict[str, int]),
    ],
)
def test_outcome_types_are_taken_out_of_the_return_annotation(annotation, returns):
    codec = codec_for(int, **{"return": annotation})
    assert not codec.outcome_only
    assert codec.returns == returns


def result_trip(annotation, value):
    codec = codec_for(int, **{"return": annotation})
    return codec.decode_result(jsonb(codec.encode_result(value, LIMIT)))


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=lambda part: f"{str(part)[:40]!a}")
def test_an_annotated_result_comes_back_equal(annotation, value):
    if value is not None:
        back = result_trip(annotation | Retry if annotation is not None else None, value)
        assert back == value
        assert type(back) is type(value)


def test_a_result_of_none_is_stored_as_nothing():
    codec = codec_for(int, **{"return": int})
    assert codec.encode_result(None, LIMIT) is None
    assert codec.decode_result(None) is None


def test_a_result_of_another_type_than_annotated_is_kept_as_plain_json():
    assert result_trip(int, {"a": [1, "x"]}) == {"a": [1, "x"]}
    assert result_trip(User, "none found") == "none found"


def test_a_stored_result_that_no_longer_fits_comes_back_as_plain_json():
    assert codec_for(int, **{"return": User}).decode_result('{"id": 1}') == {"id": 1}


def test_a_negative_zero_result_does_not_fail_a_finished_job():
    assert result_trip(Any, [-0.0]) == [0.0]


@pytest.mark.parametrize("annotation", [Any, int, User])
@pytest.mark.parametrize("value", [object(), lambda: 1, (n for n in ()), Hostile(), (1, 2), NAN, [INF], "\x00", {1: 2}])
def test_a_result_that_would_not_come_back_names_its_type(annotation, value):
    with pytest.raises(ResultNotEncodable) as caught:
        codec_for(int, **{"return": annotation}).encode_result(value, LIMIT)
    assert type(value).__name__ in caught.value.reason
    assert "result" in caught.value.reason


def test_a_result_that_refers_to_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ResultNotEncodable, match=r"result\[0\] \(list\): refers to itself"):
        codec_for(int).encode_result(loop, LIMIT)


def test_a_result_above_the_limit_is_refused_with_its_size():
    for annotation in (Any, int, str):
        with pytest.raises(ResultNotEncodable, match=r"102 bytes .* limit is 50"):
            codec_for(int, **{"return": annotation}).encode_result("x" * 100, 50)


def test_pydantic_is_imported_only_when_msgspec_cannot_build_a_type():
    program = textwrap.dedent("""
        import sys
        from uuid import UUID
        from pathlib import Path
        from aiopgq._words.codec import Codec
        def task(a: int, b: Path | None, c): ...
        codec = Codec("t", task)
        codec.decode(codec.encode((1, None, []), {}, 1000))
        assert "pydantic" not in sys.modules
        def task(a: UUID | str): ...
        Codec("t", task)
        assert "pydantic" in sys.modules
    """)
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_without_pydantic_the_refusal_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigError, match=r"'value'.*pip install 'aiopgq\[pydantic\]'"):
        codec_for(UUID | str)
    assert round_trip(list[Address], [Address("a")]) == [Address("a")]


def test_the_simulated_jsonb_writes_numbers_as_postgresql_does():
    assert jsonb('{"bb":1e22,"a":-0.0,"c":1.50}') == '{"a": 0.0, "c": 1.50, "bb": 10000000000000000000000}'
    assert math.copysign(1, json.loads(jsonb("-0.0"))) == 1
