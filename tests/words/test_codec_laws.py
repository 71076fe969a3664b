"""Laws of the codec: whatever is accepted comes back equal; whatever is not, is an ArgumentError."""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiopgq._words.codec import Codec, ResultNotEncodable
from aiopgq.errors import ArgumentError

LIMIT = 1 << 20


def jsonb(text):
    """What PostgreSQL gives back: plain numbers without a negative zero, keys sorted, duplicates dropped."""

    def write(value):
        if isinstance(value, dict):
            keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
            return "{" + ",".join(f"{json.dumps(key)}:{write(value[key])}" for key in keys) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(write, value)) + "]"
        if isinstance(value, Decimal):
            return format(value or abs(value), "f")
        return json.dumps(value, ensure_ascii=False)

    return write(json.loads(text, parse_float=Decimal, parse_constant=pytest.fail))


@dataclass
class Item:
    name: str
    price: Decimal
    at: datetime | None


def call(a: int, b: str, c: float, d: bool | None = None): ...


def typed(  # every kind of position at once
    ids: list[int],
    weights: dict[str, float | None],
    keys: dict[int, bytes],
    items: list[Item],
    pair: tuple[UUID, date],
): ...


def moment(at: datetime): ...


def anything(value, **rest): ...


CALL, TYPED, ANYTHING = Codec("call", call), Codec("typed", typed), Codec("anything", anything)
MOMENT = Codec("moment", moment)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NUMBER = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0 if number else 0.0)
SCALAR = st.none() | st.booleans() | st.integers() | NUMBER | TEXT
JSON: Any = st.recursive(SCALAR, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)
DECIMAL = st.decimals(allow_nan=False)
MOMENTS = (st.none() | st.datetimes()).filter(lambda moment: moment is None or moment.fold == 0)
ODD: Any = (
    SCALAR
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | DECIMAL
    | st.sampled_from([object(), int, Item("a", Decimal(1), None), range(3), {1, 2}, (1,), -0.0])
)


def _hashable(key):
    try:
        hash(key)
    except TypeError:
        return False
    return True


WILD: Any = st.recursive(
    ODD,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(ODD.filter(_hashable), inner),
    max_leaves=10,
)


@given(st.integers(), TEXT, NUMBER, st.booleans() | st.none())
def test_a_call_of_scalars_comes_back(a, b, c, d):
    args, kwargs = CALL.decode(jsonb(CALL.encode((a, b), {"c": c, "d": d}, LIMIT)))
    assert args == ()
    assert list(map(repr, (kwargs[name] for name in "abcd"))) == list(map(repr, (a, b, c, d)))


@given(JSON, st.dictionaries(TEXT.filter(lambda name: name != "value"), JSON))
def test_json_values_come_back_exactly_without_a_type(value, rest):
    _, kwargs = ANYTHING.decode(jsonb(ANYTHING.encode((value,), rest, LIMIT)))
    assert kwargs == {"value": value, **rest}
    assert json.dumps(kwargs, sort_keys=True) == json.dumps({"value": value, **rest}, sort_keys=True)


@given(
    st.lists(st.integers()),
    st.dictionaries(TEXT, NUMBER | st.none()),
    st.dictionaries(st.integers(), st.binary()),
    st.lists(st.builds(Item, TEXT, DECIMAL, MOMENTS)),
    st.tuples(st.uuids(), st.dates()),
)
def test_typed_values_come_back_equal(ids, weights, keys, items, pair):
    passed = {"ids": ids, "weights": weights, "keys": keys, "items": items, "pair": pair}
    assert TYPED.decode(jsonb(TYPED.encode((), passed, LIMIT))) == ((), passed)


@given(WILD)
def test_whatever_is_passed_comes_back_equal_or_is_refused(value):
    with suppress(ArgumentError):
        text = jsonb(ANYTHING.encode((value,), {}, LIMIT))
        assert ANYTHING.decode(text) == ((), {"value": value})


@given(WILD)
def test_whatever_is_returned_comes_back_equal_or_is_not_encodable(value):
    with suppress(ResultNotEncodable):
        text = ANYTHING.encode_result(value, LIMIT)
        assert ANYTHING.decode_result(None if text is None else jsonb(text)) == value


@given(WILD, WILD, WILD)
def test_a_call_of_anything_fits_the_types_or_is_refused(a, b, c):
    with suppress(ArgumentError):
        _, kwargs = CALL.decode(jsonb(CALL.encode((a, b, c), {}, LIMIT)))
        assert kwargs == {"a": a, "b": b, "c": c}
        assert [type(kwargs[name]) for name in "abc"] == [int, str, float]


@given(st.text())
def test_any_stored_text_is_read_or_refused(text):
    for codec in (CALL, TYPED, ANYTHING):
        with suppress(ArgumentError):
            codec.decode(text)


@given(st.datetimes(timezones=st.timezones()))
def test_a_moment_in_any_zone_is_the_same_moment_or_refused(at):
    with suppress(ArgumentError):
        back = MOMENT.decode(jsonb(MOMENT.encode((at,), {}, LIMIT)))[1]["at"]
        assert back.replace(tzinfo=None) == at.replace(tzinfo=None, fold=0)
        assert back.utcoffset() == at.utcoffset()
