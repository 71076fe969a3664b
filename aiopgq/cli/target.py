"""From `module[:attr]` to an App, or to a message that says what would have been right."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

import aiopgq
from aiopgq.app import App
from aiopgq.errors import AiopgqError, UsageError
from aiopgq.router import Router

__all__ = ["TargetError", "load"]

_OURS: Final = os.path.dirname(aiopgq.__file__) + os.sep  # noqa: PTH120  # compared with file names of frames
_WEB: Final = ("fastapi", "starlette", "aiohttp", "litestar", "quart", "flask", "django")


class TargetError(UsageError):
    """What `-A` names is not an App that can be used.

    Attributes:
        traceback: Of the error in the user's module, as text; empty if the fault is not there.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)


def load(target: str, *, tasks: bool) -> App[Any]:
    """Import the App that `module[:attr]` names.

    Args:
        target: The module, and the App's name in it; without a name the only App of the module is taken.
        tasks: Import the modules that declare its tasks as well.

    Raises:
        TargetError: There is no such App, or importing it fails.
    """
    name, colon, attr = target.partition(":")
    if not name or (colon and not attr):
        raise TargetError(f"-A {target}: write module or module:attr, such as -A myapp.queue:jobs.")
    if "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise TargetError(f"-A {target}: takes a module, not a file; write -A {dotted}{colon}{attr}.")
    if (top := name.partition(".")[0]) in sys.stdlib_module_names:
        raise TargetError(f"-A {target}: {top!r} is a module of Python's own, which others import; rename yours.")
    here = os.getcwd()  # noqa: PTH109  # an entry of sys.path is a string
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(f"-A {target}", name, lambda: importlib.import_module(name))
    app = _named(target, module, attr) if attr else _only(target, module)
    if tasks:
        _imported(f"-A {target}, its imports", name, app.import_tasks)

    return app


def _imported(what: str, name: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise TargetError(
                f"{what}: there is no module {error.name!r} in {Path.cwd()} or where Python looks."
            ) from None
        place = _theirs(error.__traceback__)
        at = f" ({place.tb_frame.f_code.co_filename}:{place.tb_lineno})" if place else ""
        if isinstance(error, AiopgqError):
            raise TargetError(f"{what}: {error}{at}") from error
        shown = place is not None or isinstance(error, SyntaxError)
        told = "".join(traceback.format_exception(error.with_traceback(place))) if shown else ""
        raise TargetError(f"{what}: importing it fails: {type(error).__name__}: {error}{at}", told) from error


def _theirs(tb: TracebackType | None) -> TracebackType | None:
    """Skip the frames between our call and the user's first line."""
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen importlib")) and file != importlib.__file__:
            return tb
        tb = tb.tb_next

    return None


def _named(target: str, module: ModuleType, attr: str) -> App[Any]:
    found: Any = module
    for part in attr.split("."):
        if not hasattr(found, part):
            raise TargetError(f"-A {target}: {module.__name__} has no {attr!r}. {_right(module)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise TargetError(f"-A {target}: that is {_described(found)}, not an aiopgq App. {_right(module)}")

    return found


def _only(target: str, module: ModuleType) -> App[Any]:
    apps = _apps(module)
    distinct = {id(app): app for app in apps.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if distinct:
        targets = ", ".join(f"{module.__name__}:{name}" for name in apps)
        raise TargetError(f"-A {target}: there are several Apps; name one: {targets}.")
    raise TargetError(f"-A {target}: there is no App in it. {_right(module)}")


def _apps(module: ModuleType) -> dict[str, App[Any]]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _right(module: ModuleType) -> str:
    """Say what to write instead."""
    targets = sorted({f"{module.__name__}:{name}" for name in _apps(module)} or set(_elsewhere()))
    if targets:
        return f"Write -A {' or -A '.join(targets)}."
    for name, value in vars(module).items():
        if isinstance(value, Router):
            return f"{name!r} is a Router: name the App that includes it."
    file = Path(f"{module.__name__.split('.')[0]}.py")
    if file.exists() and Path(getattr(module, "__file__", None) or "") != file.absolute():
        return f"Python knows another module of that name ({module.__file__}); rename ./{file}."

    return "Name the module where you wrote `jobs = App(…)`."


def _elsewhere() -> Iterator[str]:
    """Look for Apps in what else was imported from the user's folders."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not name.startswith("aiopgq") and name != "__main__":
            yield from (f"{name}:{attr}" for attr in _apps(module))


def _described(found: Any) -> str:
    if isinstance(found, Router):
        return "a Router"
    if isinstance(found, ModuleType):
        return "a module"
    kind = type(found)
    web = [one for one in kind.__mro__ if one.__module__.partition(".")[0] in _WEB]
    if web:
        framework = web[0].__module__.partition(".")[0]
        return f"the web application ({framework})"

    return f"of type {kind.__name__}"
