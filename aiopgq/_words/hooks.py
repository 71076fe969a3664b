"""How an annotated type travels: by msgspec, helped with paths, addresses and models, or by pydantic.

Pydantic is imported only when msgspec cannot build a type; models are recognised without importing it.
"""

import importlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from aiopgq._words.lossless import Lossy, type_name

__all__ = ["ANYTHING", "Shape", "Unbuildable", "decoder", "encode", "shape"]

_ADDRESSES: Final = frozenset(
    ["IPv4Address", "IPv4Interface", "IPv4Network", "IPv6Address", "IPv6Interface", "IPv6Network"]
)
_JSON_SCALARS: Final = (str, int, float, bool, type(None))
# Unconstrained types whose exact instances always come back as they went.
_EXACT: Final[dict[type, tuple[type, ...]]] = {
    inspect.AnyType: _JSON_SCALARS,
    inspect.StrType: (str,),
    inspect.IntType: (int,),
    inspect.FloatType: (float,),
    inspect.BoolType: (bool,),
    inspect.NoneType: (type(None),),
    inspect.BytesType: (bytes,),
    inspect.DateType: (date,),
    inspect.UUIDType: (UUID,),
}
_DUMP: Final[dict[str, Any]] = {"mode": "json", "by_alias": True, "round_trip": True, "warnings": "error"}


class Unbuildable(TypeError):
    """Neither msgspec nor pydantic can read a type from JSON; the message says what would help."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One annotated type.

    Attributes:
        wire: What msgspec is told: the annotation, or Any where pydantic does the work.
        adapter: Pydantic's TypeAdapter, where msgspec cannot build the type.
        exact: Types whose exact instances need no check (a float still has to be finite).
        plain: Built-in types only, so `==` alone proves that a value came back unchanged.
        decode: Reads JSON text; `load` finishes it.
    """

    wire: Any
    adapter: Any
    exact: tuple[type, ...]
    plain: bool
    decode: Callable[[Any], Any]

    def dump(self, value: Any) -> Any:
        """Turn the value into what `encode` takes.

        Raises:
            Exception: Whatever pydantic or the value's own serialisers raise.
        """
        return value if self.adapter is None else self.adapter.dump_python(value, **_DUMP)

    def load(self, found: Any) -> Any:
        """Finish what msgspec decoded.

        Raises:
            ValueError: It does not fit the type.
        """
        return found if self.adapter is None else _validated(self.adapter.validate_json, found)

    def read(self, text: Any) -> Any:
        """Decode JSON text as a value of the type.

        Raises:
            ValueError: It does not fit the type.
        """
        return self.load(self.decode(text))


def shape(annotation: Any) -> Shape:
    """Find out how values of a type travel.

    Raises:
        Unbuildable: They cannot.
    """
    if annotation is object:
        return ANYTHING
    try:
        tree = inspect.type_info(annotation)
        decode = decoder(annotation)
    except Exception:  # noqa: BLE001  # msgspec evaluates the caller's own classes
        return _foreign(annotation)
    nodes = list(_nodes(tree, set()))
    custom = [node.cls for node in nodes if isinstance(node, inspect.CustomType)]
    if any(issubclass(kind, OrderedDict) for kind in custom):
        raise Unbuildable("loses its order: PostgreSQL does not keep that of keys. Use a list of pairs.")
    if not all(_is_known(kind) for kind in custom):
        return _foreign(annotation)
    objects = (inspect.CustomType, inspect.DataclassType, inspect.StructType)
    plain = not any(isinstance(node, objects) for node in nodes)
    return Shape(annotation, None, _exact(tree), plain, decode)


def _to_json(value: Any) -> Any:
    kind = type(value)
    if _is_model(kind):
        return value.model_dump(**_DUMP)
    if issubclass(kind, PurePath) or _is_address(kind):
        return str(value)
    # msgspec takes str, int and float themselves only; a subclass comes back equal, as its base.
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return int.__pos__(value)
    if issubclass(kind, float):
        return float.__pos__(value)
    raise Lossy("", f"{type_name(value)} is not JSON")


def _from_json(wanted: Any, found: Any) -> Any:
    """Be msgspec's `dec_hook`.

    Raises:
        ValueError: The value does not fit.
    """
    if _is_model(wanted):
        return _validated(wanted.model_validate_json, found)
    if type(found) is not str:
        raise Lossy("", f"Expected `{wanted.__name__}`, got `{type_name(found)}`")
    return wanted(found)


def decoder(wire: Any) -> Callable[[Any], Any]:
    """Make the function that decodes JSON text as a type."""
    return msgspec.json.Decoder(wire, dec_hook=_from_json).decode


ANYTHING: Final = Shape(Any, None, _JSON_SCALARS, plain=True, decode=decoder(Any))
encode: Final = msgspec.json.Encoder(enc_hook=_to_json).encode


def _validated(validate_json: Callable[[bytes], Any], found: Any) -> Any:
    """Let pydantic read what msgspec decoded; from text, since it has rules of its own for JSON.

    Raises:
        Lossy: It does not fit.
    """
    try:
        return validate_json(msgspec.json.encode(found))
    except ValueError as error:
        problems = getattr(error, "errors", None)
        if problems is None:
            raise
        first = problems(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        # Pydantic's own message shows the value, which may be a secret.
        raise Lossy("", f"{where}: {first['msg']}" if where else first["msg"]) from None


def _is_model(kind: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


def _is_address(kind: type) -> bool:
    return kind.__module__ == "ipaddress" and kind.__name__ in _ADDRESSES


def _is_known(kind: type) -> bool:
    return issubclass(kind, PurePath) or _is_address(kind) or _is_model(kind)


def _foreign(annotation: Any) -> Shape:
    """Let pydantic do what msgspec cannot.

    Raises:
        Unbuildable: It cannot either, or is not installed.
    """
    try:
        pydantic: Any = importlib.import_module("pydantic")
    except ImportError:
        raise Unbuildable(
            "cannot be read from JSON by msgspec, and pydantic is not installed. "
            "Use another type, or pip install 'aiopgq[pydantic]'."
        ) from None
    try:
        adapter = pydantic.TypeAdapter(annotation)
    except Exception:  # noqa: BLE001  # pydantic evaluates the caller's own classes
        raise Unbuildable(
            "can be read from JSON neither by msgspec nor by pydantic. "
            "Pass an id or plain values, and load the object in the task."
        ) from None
    return Shape(Any, adapter, (), plain=False, decode=decoder(Any))


def _nodes(node: Any, seen: set[int]) -> Iterator[Any]:
    """Give every part of msgspec's description of a type once; recursive types refer to themselves."""
    if isinstance(node, tuple):
        for part in node:
            yield from _nodes(part, seen)
    elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
        seen.add(id(node))
        if isinstance(node, inspect.Type):
            yield node
        for name in node.__struct_fields__:
            yield from _nodes(getattr(node, name), seen)


def _exact(tree: inspect.Type) -> tuple[type, ...]:
    members = tree.types if isinstance(tree, inspect.UnionType) else (tree,)
    exact: list[type] = []
    for member in members:
        # A constrained type (gt=, pattern=, …) differs from the bare one, and is checked by decoding.
        if type(member) not in _EXACT or member != type(member)():
            return ()
        exact.extend(_EXACT[type(member)])
    return tuple(exact)
