"""A task's call as JSON text and back, checked against the function's signature; results likewise.

The one law: the job is given what the caller passed. A call is encoded, decoded by the task's own types, and
compared; what would come back unequal is refused where it was made. Calls of exact scalars are known to come
back and skip the proof.

`jsonb` keeps values, not their writing: the order of a dict's keys is lost, and subclasses of str, int and
float come back as their base. Stored keys that the signature does not have are ignored, so that a parameter
may be removed while old jobs wait.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from inspect import Parameter, signature
from math import copysign
from typing import Any, Final, NoReturn

import msgspec

from aiopgq._words import hooks, lossless
from aiopgq._words.hooks import Shape
from aiopgq._words.lossless import Lossy
from aiopgq._words.plan import Plan, build, fault, load, setting
from aiopgq.errors import ArgumentError, ConfigError

__all__ = ["Codec", "ResultNotEncodable"]

# Below it, a float's text needs no exponent, and PostgreSQL keeps its decimal point.
_PLAIN_FLOAT: Final = 1e16
_GOT = re.compile(r"got `[^`]*`")
_REFER: Final = "pass a reference to it, or raise the limit with App(max_args_bytes=…)."


class ResultNotEncodable(ValueError):
    """A result that cannot be stored without changing it.

    Attributes:
        reason: What is wrong; it names types and places, never values.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Codec:
    """The codec of one task, built once when the task is declared.

    Args:
        task: The task's name, for messages.
        function: The task's function. Annotations that refer to something defined later are resolved at the
            first use.

    Raises:
        ConfigError: The signature can never work: `*args`, an annotation that means nothing, or a type that
            neither msgspec nor pydantic can read from JSON.
    """

    __slots__ = ("_function", "_parameters", "_plan", "task")

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        self._function = function
        self._parameters = list(signature(function).parameters.values())
        for parameter in self._parameters:
            if parameter.kind is Parameter.VAR_POSITIONAL:
                raise ConfigError(
                    setting(task, parameter.name),
                    f"*{parameter.name} has no names to store its arguments under. Take a list instead.",
                )
        self._plan: Plan | None = None
        with suppress(NameError):  # defined later in the module, perhaps
            self._plan = build(task, function, self._parameters)

    @property
    def returns(self) -> Any:
        """The return annotation without the outcome types; Any if there is none.

        Raises:
            ConfigError: An annotation cannot be resolved.
        """
        return (self._plan or self._resolve()).returns

    @property
    def outcome_only(self) -> bool:
        """Whether the function returns outcomes only; False while its annotations cannot be resolved."""
        if self._plan is None:
            with suppress(NameError):
                self._plan = build(self.task, self._function, self._parameters)
        return self._plan is not None and self._plan.outcome_only

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> str:
        """Turn a call into the text of a JSON object: what was passed, by parameter name.

        Args:
            args: The positional arguments.
            kwargs: The keyword arguments.
            limit: The most bytes of UTF-8 the text may have.

        Raises:
            ArgumentError: The call does not fit the signature, or would not come back as it went.
            ConfigError: An annotation cannot be resolved.
        """
        plan = self._plan or self._resolve()
        if not kwargs and plan.fewest <= len(args) <= len(plan.positional):
            bound = dict(zip(plan.positional, args))  # noqa: B905  # saying strict=False would take half as long again
        else:
            bound = self._bind(plan, args, kwargs)
        exact = plan.exact
        for name, value in bound.items():
            kind = type(value)
            if kind not in exact.get(name, ()) or (kind is float and not _is_kept(value)):
                return self._encode_checked(plan, bound, limit)
        try:
            raw = hooks.encode(bound)
        except Exception:  # noqa: BLE001  # a surrogate or an endless integer: the checked way says which
            return self._encode_checked(plan, bound, limit)
        text = raw.decode()
        if len(raw) > limit or "\\u0000" in text:
            return self._encode_checked(plan, bound, limit)
        return text

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn stored text into the arguments of the call.

        Raises:
            ArgumentError: The stored arguments do not fit the signature (any more).
            ConfigError: An annotation cannot be resolved.
        """
        plan = self._plan or self._resolve()
        try:
            if plan.direct:
                return (), plan.decode(text)
            bound = load(plan, text)
        except Exception as error:  # noqa: BLE001  # decoding builds the caller's own classes
            path, reason = fault(error)
            raise ArgumentError(self.task, path, reason) from None
        return plan.split(bound), bound

    def encode_result(self, value: Any, limit: int) -> str | None:
        """Turn a result into JSON text; None stays None.

        A value of another type than annotated is stored all the same if plain JSON holds it. -0.0 becomes
        0.0, which is equal: a finished job is not failed for it.

        Args:
            value: What the function returned, not an outcome.
            limit: The most bytes of UTF-8 the text may have.

        Raises:
            ResultNotEncodable: It would not come back as it went, or is too large.
            ConfigError: An annotation cannot be resolved.
        """
        if value is None:
            return None
        plan = self._plan or self._resolve()
        try:
            return _proven(plan.result, value, limit)
        except ResultNotEncodable:
            raise
        except Exception as error:  # noqa: BLE001  # encoding runs the caller's own serialisers
            typed = error
        try:
            return _proven(hooks.ANYTHING, value, limit)
        except ResultNotEncodable:
            raise
        except Exception:  # noqa: BLE001  # likewise
            path, reason = fault(_explained(hooks.ANYTHING, value, "result") or typed)
        raise ResultNotEncodable(f"{path or 'result'} ({lossless.type_name(value)}): {reason}")

    def decode_result(self, text: str | None) -> Any:
        """Turn a stored result into a value of the return type, or into plain JSON values if it does not fit.

        Raises:
            ConfigError: An annotation cannot be resolved.
        """
        if text is None:
            return None
        plan = self._plan or self._resolve()
        try:
            return plan.result.read(text)
        except Exception:  # noqa: BLE001  # decoding builds the caller's own classes
            return msgspec.json.decode(text)

    def _resolve(self) -> Plan:
        try:
            plan = self._plan = build(self.task, self._function, self._parameters)
        except NameError as error:
            annotations = getattr(self._function, "__annotations__", {})
            unknown = re.compile(rf"\b{re.escape(str(error.name))}\b")
            at = next((name for name, text in annotations.items() if unknown.search(str(text))), None)
            raise ConfigError(
                setting(self.task, at) if at else f"Task {self.task!r}",
                f"{error}. Define the type at the top of the module, or import it there and not under TYPE_CHECKING.",
            ) from None
        return plan

    def _bind(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Give every argument its name, as a call would.

        Raises:
            ArgumentError: Something is missing, unexpected, or there twice.
        """
        most = len(plan.positional)
        if len(args) > most:
            reason = f"takes at most {most} positional arguments, {len(args)} were given"
            raise ArgumentError(self.task, None, reason)
        bound = dict(zip(plan.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in plan.positional_only:
                raise ArgumentError(self.task, name, "is positional-only; pass it without its name")
            if name in bound:
                raise ArgumentError(self.task, name, "was given twice, by position and by name")
            if name not in plan.names and plan.extra is None:
                known = ", ".join(plan.names) or "no parameters"
                raise ArgumentError(self.task, name, f"there is no such parameter; the task takes {known}")
            bound[name] = value
        for name in plan.required:
            if name not in bound:
                raise ArgumentError(self.task, name, "is missing")
        return bound

    def _encode_checked(self, plan: Plan, bound: dict[str, Any], limit: int) -> str:
        """Encode, and prove that the job would be given the same.

        Raises:
            ArgumentError: It would not.
        """
        try:
            raw = hooks.encode({name: plan.shape(name).dump(value) for name, value in bound.items()})
            if len(raw) <= limit:
                raw = lossless.storable(raw)
            if len(raw) > limit:
                reason = _too_large("the arguments are", len(raw), limit, _REFER)
                raise ArgumentError(self.task, None, reason)  # noqa: TRY301  # told in the caller's terms below
            if lossless.has_negative_zero(raw):
                raise Lossy("", "holds -0.0, which PostgreSQL would change to 0.0")  # noqa: TRY301  # told in the caller's terms below
            self._prove(plan, bound, load(plan, raw))
        except ArgumentError:
            raise  # too large to be searched for a better reason
        except Exception as error:  # noqa: BLE001  # encoding and decoding run the caller's own classes
            self._refuse(plan, bound, error)
        return raw.decode()

    def _prove(self, plan: Plan, bound: dict[str, Any], back: dict[str, Any]) -> None:
        """Compare what went in with what comes back.

        Raises:
            Lossy: They differ.
        """
        if plan.plain and lossless.equal(bound, back):
            return
        for name, value in bound.items():
            found = lossless.changed(value, back.get(name), name)
            if found is not None:
                raise found

    def _refuse(self, plan: Plan, bound: dict[str, Any], error: Exception) -> NoReturn:
        """Say what is wrong in the caller's terms, or in msgspec's where the value itself is storable."""
        for name, value in bound.items():
            found = _explained(plan.shape(name), value, name)
            if found is not None:
                raise ArgumentError(self.task, found.path, found.reason) from None
        path, reason = fault(error)
        if path in bound:
            # msgspec tells the JSON type; the caller knows the Python one.
            reason = _GOT.sub(f"got `{lossless.type_name(bound[path])}`", reason)
        raise ArgumentError(self.task, path, reason) from None


def _is_kept(value: float) -> bool:
    """Say of a float whether its text stays as it is; NaN, the infinities and -0.0 are not kept either."""
    return -_PLAIN_FLOAT < value < _PLAIN_FLOAT and (value != 0.0 or copysign(1.0, value) > 0)


def _assume(_: Any) -> bytes:
    return b""


def _explained(shape: Shape, value: Any, path: str) -> Lossy | None:
    """Find what JSON or PostgreSQL cannot hold in a value, or that it cannot be encoded at all."""
    # What pydantic writes may hold parts that `encode` alone does not know.
    encode = hooks.encode if shape.adapter is None else _assume
    try:
        found = lossless.unstorable(value, path, encode)
    except Exception:  # noqa: BLE001  # the explanation must not hide the refusal
        return None
    if found is None:
        try:
            hooks.encode(shape.dump(value))
        except Exception as error:  # noqa: BLE001  # encoding runs the caller's own serialisers
            return Lossy(path, fault(error)[1])
    return found


def _proven(shape: Shape, value: Any, limit: int) -> str:
    """Encode a result, and prove that it comes back.

    Raises:
        ResultNotEncodable: It is too large.
        Exception: It does not come back; `fault` reads why.
    """
    raw = hooks.encode(shape.dump(value))
    if len(raw) <= limit:
        raw = lossless.storable(raw)
    if len(raw) > limit:
        raise ResultNotEncodable(_too_large("the result is", len(raw), limit, "return a reference to it."))
    back = shape.read(raw)
    if not (shape.plain and lossless.equal(value, back)):
        found = lossless.changed(value, back, "result")
        if found is not None:
            raise found
    return raw.decode()


def _too_large(what: str, size: int, limit: int, remedy: str) -> str:
    return f"{what} {size:,} bytes of JSON, the limit is {limit:,}. Store the data elsewhere; {remedy}"
