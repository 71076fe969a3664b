"""What may be stored: a value goes into a `jsonb` column only if an equal one comes out of it.

The text decides (`storable`, `has_negative_zero`), since it is what PostgreSQL sees; the walks (`unstorable`,
`changed`) say where a value is at fault. They meet objects of the caller's own, so they never call `__str__`,
`__repr__` or `__class__` of one, and `__eq__` only guarded.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

__all__ = [
    "DEEPEST",
    "Lossy",
    "changed",
    "equal",
    "has_negative_zero",
    "key_path",
    "storable",
    "type_name",
    "unstorable",
]

DEEPEST: Final = 200
_LONGEST_KEY: Final = 40
_LONGEST_PATH: Final = 120
_ABSENT: Final = object()
_ITEMS: Final = (list, tuple)
_COLLECTIONS: Final = (list, tuple, set, frozenset)
_LEAVES: Final = frozenset([str, int, float, bool, type(None), bytes, date, datetime, time, timedelta, UUID])
_MOMENTS: Final = (datetime, time)

# An even run of backslashes before it means a real U+0000; an odd one, the six characters `\u0000` as text.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_BIG_FLOAT = re.compile(rb"e(?<=[0-9]e)[0-9]")  # the literal first: the search for it is six times as fast
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_STRINGS = re.compile(_STRING)
_TOKEN = re.compile(_STRING + rb"|-?[0-9][0-9.eE+-]*+")
_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_NUL_REASON: Final = "holds the character U+0000, which PostgreSQL cannot store"
_DEEP_REASON: Final = f"is nested deeper than {DEEPEST} levels"


class Lossy(ValueError):
    """A value that PostgreSQL would refuse or change.

    Attributes:
        path: Where: a path such as `a["x"][0]`, empty when only the whole is known.
        reason: What is wrong there.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + "…"
        self.reason = reason
        super().__init__(f"{path}: {reason}" if path else reason)


def storable(raw: bytes) -> bytes:
    """Return the JSON text as PostgreSQL shall get it: every float keeps a decimal point.

    `jsonb` writes 1e23 as an integer, which is not equal to the float 1e23 when read without a type.

    Raises:
        Lossy: It holds U+0000, or is nested deeper than DEEPEST.
    """
    if b"\\u0000" in raw and _NUL.search(raw):
        raise Lossy("", _NUL_REASON)
    if _too_deep(raw):
        raise Lossy("", _DEEP_REASON)
    if _BIG_FLOAT.search(raw):
        return _TOKEN.sub(_plain_float, raw)
    return raw


def has_negative_zero(raw: bytes) -> bool:
    """Say whether the text holds the number -0.0, which `jsonb` would turn into 0.0."""
    return b"-0.0" in raw and any(token[0] == b"-0.0" for token in _TOKEN.finditer(raw))


def unstorable(value: Any, path: str, encode: Callable[[Any], bytes]) -> Lossy | None:
    """Find the first place in a value that JSON or PostgreSQL cannot hold, or None."""
    return _unstorable(value, path, encode, ())


def changed(value: Any, back: Any, path: str) -> Lossy | None:
    """Find the first place where what comes back is not equal to what went in, or None.

    Objects are compared field by field: their own `__eq__` may leave fields out, or not exist.
    """
    kind = type(value)
    if kind in _LEAVES and kind is type(back) and value == back:
        return None
    if _is(value, dict):
        return _changed_keys(value, back, path) if _is(back, dict) else Lossy(path, _would(value, back))
    if _is(value, _ITEMS):
        base = list if _is(value, list) else tuple
        return _changed_items(value, back, path) if _is(back, base) else Lossy(path, _would(value, back))
    names = _field_names(value)
    if names is None:
        return None if _same_leaf(value, back) else Lossy(path, _would(value, back))
    return _changed_fields(value, back, path, names) if kind is type(back) else Lossy(path, _would(value, back))


def equal(value: Any, back: Any) -> bool:
    """Compare two values, an exception in somebody's `__eq__` being a no."""
    try:
        return (value == back) is True
    except Exception:  # noqa: BLE001  # anything may come out of the caller's own __eq__
        return False


def key_path(key: Any) -> str:
    """Write a key as it stands in a path: `["x"]`, shortened, control characters escaped."""
    if not _is(key, str):
        return f"[{int.__repr__(key)}]" if type(key) is int else f"[{type_name(key)}]"
    plain = str.__str__(key)
    if len(plain) > _LONGEST_KEY:
        plain = plain[:_LONGEST_KEY] + "…"
    return f'["{plain}"]' if plain.isprintable() else f'["{plain.encode("unicode_escape").decode()}"]'


def type_name(value: Any) -> str:
    """Name the value's type, whatever its metaclass does."""
    return type.__dict__["__name__"].__get__(type(value))  # type: ignore[no-any-return]  # a slot of type


def _too_deep(raw: bytes) -> bool:
    """Measure the nesting on the text: what a worker can read must not depend on its own stack."""
    if len(raw) <= 2 * DEEPEST or _is_flat(raw):
        return False
    return not _is_flat(_STRINGS.sub(b"", raw))  # brackets inside strings do not count


def _is_flat(raw: bytes) -> bool:
    brackets = raw.translate(_TO_BRACKETS, _NOT_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def _plain_float(token: re.Match[bytes]) -> bytes:
    number = token[0]
    if number[:1] == b'"' or not _BIG_FLOAT.search(number):
        return number
    return b"%d.0" % int(Decimal(number.decode()))


def _is(value: Any, kinds: Any) -> bool:
    """Test the real type: isinstance would also ask `__class__`, which may be anybody's property."""
    return issubclass(type(value), kinds)


def _unstorable(value: Any, path: str, encode: Callable[[Any], bytes], above: tuple[int, ...]) -> Lossy | None:
    reason = _bad_scalar(value)
    if reason is None and id(value) in above:
        reason = "refers to itself"
    elif reason is None and len(above) > DEEPEST:
        reason = _DEEP_REASON
    if reason is not None:
        return Lossy(path, reason)
    children = _children(value, path)
    if children is None:
        return _bad_leaf(value, path, encode)
    found = _bad_key(value, path, encode) if _is(value, dict) else None
    if found is not None:
        return found
    deeper = (_unstorable(child, where, encode, (*above, id(value))) for child, where in children)
    return next((fault for fault in deeper if fault is not None), None)


def _bad_scalar(value: Any) -> str | None:
    if _is(value, str):
        plain = str.__str__(value)
        if "\x00" in plain:
            return _NUL_REASON
        try:
            plain.encode()
        except UnicodeEncodeError:
            return "holds a lone surrogate, which is not valid Unicode text"
    if _is(value, float):
        if not math.isfinite(value):
            return f"is {float.__repr__(value)}, and JSON has finite numbers only"
        if value == 0.0 and math.copysign(1.0, value) < 0:
            return "is -0.0, which PostgreSQL would change to 0.0"
    return None


def _bad_leaf(value: Any, path: str, encode: Callable[[Any], bytes]) -> Lossy | None:
    try:
        encode(value)
    except Exception:  # noqa: BLE001  # encoding may run the caller's own serialisers
        if _is(value, int):
            return Lossy(path, "is an integer with too many digits (see sys.set_int_max_str_digits)")
        return Lossy(path, f"a value of type {type_name(value)} cannot be stored as JSON")
    return None


def _bad_key(value: dict[Any, Any], path: str, encode: Callable[[Any], bytes]) -> Lossy | None:
    for key in value:
        reason = _bad_scalar(key)
        if reason is not None:
            return Lossy(path + key_path(key), f"its key {reason}")
        try:
            encode({key: None})
        except Exception:  # noqa: BLE001  # encoding may run the caller's own serialisers
            return Lossy(path, f"a key of type {type_name(key)} cannot be stored as JSON")
    return None


def _children(value: Any, path: str) -> Iterator[tuple[Any, str]] | None:
    """Give the parts of a value with their paths, or None for one without parts."""
    if _is(value, dict):
        return ((item, path + key_path(key)) for key, item in dict.items(value))
    if _is(value, _COLLECTIONS):
        return ((item, f"{path}[{index}]") for index, item in enumerate(value))
    names = _field_names(value)
    if names is None:
        return None
    return ((getattr(value, name), f"{path}.{name}") for name in names if hasattr(value, name))


def _field_names(value: Any) -> tuple[str, ...] | None:
    """List the fields of a Struct, dataclass or pydantic model; None for anything else."""
    kind: Any = type(value)
    names = _fields_of(kind)
    extra = value.__pydantic_extra__ if names is not None and hasattr(kind, "__pydantic_extra__") else None
    return (*(names or ()), *extra) if extra else names


@lru_cache(maxsize=1024)
def _fields_of(kind: Any) -> tuple[str, ...] | None:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    for listing in ("__struct_fields__", "__pydantic_fields__"):
        found = getattr(kind, listing, None)
        if isinstance(found, tuple | dict):
            return tuple(found)
    return None


def _changed_fields(value: Any, back: Any, path: str, names: tuple[str, ...]) -> Lossy | None:
    for name in names:
        found = changed(getattr(value, name, _ABSENT), getattr(back, name, _ABSENT), f"{path}.{name}")
        if found is not None:
            return found
    return None


def _changed_items(value: Any, back: Any, path: str) -> Lossy | None:
    if len(value) != len(back):
        return Lossy(path, f"would come back with {len(back)} items instead of {len(value)}")
    for index, (mine, theirs) in enumerate(zip(value, back, strict=True)):
        found = changed(mine, theirs, f"{path}[{index}]")
        if found is not None:
            return found
    return None


def _changed_keys(value: Any, back: Any, path: str) -> Lossy | None:
    kinds = {type(key) for key in back}
    for key, mine in dict.items(value):
        if key not in back:
            if not kinds or type(key) in kinds:
                return Lossy(path + key_path(key), "would be lost: its type has no such key")
            hint = "annotate the parameter with the type of its keys"
            return Lossy(path + key_path(key), f"its key would come back as a str; {hint}")
        found = changed(mine, back[key], path + key_path(key))
        if found is not None:
            return found
    return None


def _same_leaf(value: Any, back: Any) -> bool:
    if equal(value, back):
        return True
    if _is(value, Decimal) and _is(back, Decimal):
        return str(value) == str(back)  # a Decimal NaN is stored exactly and equals nothing
    if _is(value, _MOMENTS) and _is(back, _MOMENTS):
        # In a repeated or skipped hour, == between two time zones is always False; the moment is the same.
        here, there = value.replace(tzinfo=None, fold=0), back.replace(tzinfo=None, fold=0)
        return equal(here, there) and value.utcoffset() == back.utcoffset()
    return False


def _would(value: Any, back: Any) -> str:
    mine, theirs = type_name(value), type_name(back)
    if type(value) is type(back):
        return f"another {mine} would come back"
    if type(back) in (list, dict, str, int, float, bool, type(None)):
        hint = f"annotate the parameter with its type so that it comes back as {mine}"
    else:
        hint = f"pass a {theirs}"
    return f"a value of type {mine} would come back as a {theirs}; {hint}"
