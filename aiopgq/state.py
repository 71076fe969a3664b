"""What tasks share in a worker process: the typed `jobs.state`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from aiopgq.errors import NoState

__all__ = ["State", "StateHolder", "lent_state"]

if TYPE_CHECKING:
    # `App()` without a state needs no annotation; the default is read by checkers only.
    from typing_extensions import TypeVar as TypeVarWithDefault

    State = TypeVarWithDefault("State", default=None)
else:
    State = TypeVar("State")

_NONE: Final[Any] = object()
# What the testing kit puts in the place of `jobs.state` for one run.
lent_state: Final[ContextVar[Any]] = ContextVar("aiopgq_lent_state", default=_NONE)


class StateHolder(Generic[State]):
    """Holds what the `state=` context manager of an App yields, while a worker process is in it.

    Args:
        make: The context manager's function, None if the App has no state.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[State]] | None) -> None:
        self._make = make
        self._value: State = _NONE

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Enter the context manager for one worker process."""
        if self._make is None:
            yield
            return
        async with self._make() as state:
            self._value = state
            try:
                yield
            finally:
                self._value = _NONE

    def get(self) -> State:
        """Return what was yielded, or what the testing kit lends.

        Raises:
            NoState: There is nothing.
        """
        lent: State = lent_state.get()
        value = self._value if lent is _NONE else lent
        if value is _NONE:
            raise NoState

        return value
