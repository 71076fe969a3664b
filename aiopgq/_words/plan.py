"""What a task's signature says, in the form that a call needs it, and how stored text is read by it."""

import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, formatannotation
from typing import Any, Final

import msgspec

from aiopgq._words import hooks
from aiopgq._words.hooks import Shape
from aiopgq._words.lossless import Lossy
from aiopgq._words.outcome import OUTCOMES
from aiopgq.errors import ConfigError

__all__ = ["Plan", "build", "fault", "load", "setting"]

_WHERE = re.compile(r"(.*?)(?: - at `(?:key` in `)?\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_INVALID = re.compile(r"Invalid enum value .*", re.DOTALL)
_UNIONS: Final = (typing.Union, types.UnionType)
_NEVER: Final = (typing.NoReturn, typing.Never)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a signature says.

    Attributes:
        names: Every parameter that has a name of its own.
        positional: Those that may be passed by position.
        positional_only: Those that must be, with their defaults.
        required: Those without a default.
        fewest: The positional arguments that complete a call; more than there are if none do.
        extra: What `**kwargs` takes.
        exact: For each parameter, the types whose exact instances need no proof.
        foreign: Parameters that pydantic reads.
        plain: Built-in types only, so `==` is a proof.
        decode: Reads the stored object.
        direct: What `decode` gives are the keyword arguments, with nothing to finish.
        returns: The return annotation without outcomes.
        outcome_only: There was nothing else in it.
        result: How results travel.
    """

    names: dict[str, Shape]
    positional: tuple[str, ...]
    positional_only: dict[str, Any]
    required: tuple[str, ...]
    fewest: int
    extra: Shape | None
    exact: dict[str, tuple[type, ...]]
    foreign: tuple[str, ...]
    plain: bool
    decode: Callable[[Any], dict[str, Any]]
    direct: bool
    returns: Any
    outcome_only: bool
    result: Shape

    def shape(self, name: str) -> Shape:
        """Tell how an argument travels."""
        return self.names.get(name) or self.extra or hooks.ANYTHING

    def split(self, bound: dict[str, Any]) -> tuple[Any, ...]:
        """Take the positional-only arguments out of `bound`, up to the last one that was passed."""
        args: list[Any] = []
        passed = 0
        for name, default in self.positional_only.items():
            if name in bound:
                passed = len(args) + 1
            args.append(bound.pop(name, default))
        return tuple(args[:passed])


def build(task: str, function: Callable[..., Any], parameters: list[Parameter]) -> Plan:
    """Read a signature.

    Raises:
        NameError: An annotation refers to something that is not defined (yet).
        ConfigError: An annotation means nothing, or a type cannot be read from JSON.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (TypeError, SyntaxError) as error:
        raise ConfigError(f"Task {task!r}", f"its annotations cannot be read: {error}.") from None
    plain = [p for p in parameters if p.kind is not Parameter.VAR_KEYWORD]
    rest = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
    names = {p.name: _shape(task, p.name, hints.get(p.name, Any)) for p in plain}
    extra = None if rest is None else _shape(task, rest, hints.get(rest, Any))
    required = tuple(p.name for p in plain if p.default is Parameter.empty)
    positional = tuple(p.name for p in plain if p.kind is not Parameter.KEYWORD_ONLY)
    positional_only = {p.name: p.default for p in plain if p.kind is Parameter.POSITIONAL_ONLY}
    foreign = tuple(name for name, found in names.items() if found.adapter is not None)
    fields = {n: s.wire if n in required else typing.NotRequired[s.wire] for n, s in names.items()}
    make: Any = typing.TypedDict  # its dynamic form, which checkers do not accept
    returns, outcome_only = _without_outcomes(hints.get("return", Any))
    return Plan(
        names=names,
        positional=positional,
        positional_only=positional_only,
        required=required,
        fewest=len(required) if required == positional[: len(required)] else len(positional) + 1,
        extra=extra,
        exact={name: found.exact for name, found in names.items()},
        foreign=foreign,
        plain=all(found.plain for found in names.values()) and (extra is None or extra.plain),
        decode=hooks.decoder(make("Arguments", fields)),
        direct=not foreign and not positional_only and extra is None,
        returns=returns,
        outcome_only=outcome_only,
        result=_shape(task, "return", returns),
    )


def load(plan: Plan, text: str | bytes) -> dict[str, Any]:
    """Read the stored object into arguments by name.

    Raises:
        Exception: It does not fit; `fault` reads what.
    """
    bound = plan.decode(text)
    for name in plan.foreign:
        if name in bound:
            bound[name] = _at(name, plan.names[name].load, bound[name])
    if plan.extra is not None:
        for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items():
            if name not in plan.names:
                bound[name] = _at(name, plan.extra.read, raw)
    return bound


def fault(error: Exception) -> tuple[str | None, str]:
    """Read parameter and reason out of what encoding or decoding raised.

    An exception of the caller's own classes gives its type only: its message may be anything.
    """
    if isinstance(error, Lossy):
        return error.path or None, error.reason
    if isinstance(error, RecursionError):
        return None, "is nested too deeply"
    if not isinstance(error, msgspec.MsgspecError):
        return None, f"{type(error).__name__} while it was converted"
    found = _WHERE.fullmatch(str(error))
    reason, path = (found[1], found[2]) if found else (str(error), None)
    missing = _MISSING.fullmatch(reason)
    if missing and not path:
        return missing[1], "is missing"
    reason = _INVALID.sub("is none of the allowed values", reason)  # msgspec shows it; it may be a secret
    return path or None, reason[:1].lower() + reason[1:]


def setting(task: str, parameter: str) -> str:
    """Name a parameter, or "return", for a ConfigError."""
    what = "the return value" if parameter == "return" else f"parameter {parameter!r}"
    return f"Task {task!r}, {what}"


def _shape(task: str, parameter: str, annotation: Any) -> Shape:
    try:
        return hooks.shape(annotation)
    except hooks.Unbuildable as error:
        raise ConfigError(setting(task, parameter), f"{formatannotation(annotation)} {error}") from None


def _at(name: str, read: Callable[[Any], Any], raw: Any) -> Any:
    try:
        return read(raw)
    except ValueError as error:
        path, reason = fault(error)
        if path is None:
            raise Lossy(name, reason) from None
        raise Lossy(name + path if path.startswith("[") else f"{name}.{path}", reason) from None


def _without_outcomes(annotation: Any) -> tuple[Any, bool]:
    """Take the outcome types out of a return annotation, and say whether nothing else was in it."""
    while hasattr(annotation, "__value__"):
        annotation = annotation.__value__  # `type Name = …`
    if annotation in OUTCOMES:
        return None, True
    if annotation in _NEVER:
        return None, False
    if typing.get_origin(annotation) not in _UNIONS:
        return annotation, False
    rest = tuple(member for member in typing.get_args(annotation) if member not in OUTCOMES)
    return (typing.Union[rest], False) if rest else (None, True)  # noqa: UP007  # made at run time
