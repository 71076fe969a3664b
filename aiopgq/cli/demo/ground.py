"""Where the demo runs: a server or a schema of its own, a log, and an end that leaves nothing behind."""

import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import click

from aiopgq.embedded import EmbeddedServer, supervisor
from aiopgq.errors import ConfigError

if sys.platform != "win32":
    import fcntl

__all__ = ["Ending", "folder_of", "logging_to", "server_in"]

_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")
# A start that was broken off goes on to its end, and stops only then.
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_LOG_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LOG_TAIL: Final = 20

T = TypeVar("T")


class Ending:
    """An early end: the first signal brings it, further ones do not disturb the tidying up.

    Attributes:
        signal: The signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._end: Callable[[], object] = _interrupt

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Obey signals: outside the event loop by KeyboardInterrupt."""
        before = {}
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            # nohup wants the end of the terminal to be ignored.
            if number is not None and (name == "SIGINT" or signal.getsignal(number) is not signal.SIG_IGN):
                before[number] = signal.signal(number, self._came)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work in an event loop; a signal cancels it. Afterwards there is only tidying up."""

        async def main() -> T:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None  # noqa: S101  # this is one
            self._end = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                return await work
            finally:
                self._end = _go_on

        return asyncio.run(main())

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            self._end()


def _interrupt() -> None:
    raise KeyboardInterrupt


def _go_on() -> None:
    """Do not disturb."""


@contextmanager
def folder_of(keep: Path | None) -> Iterator[Path]:
    """Give a temporary folder, or the one to keep.

    Raises:
        ConfigError: The one to keep is not new.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="aiopgq-demo-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    folder = keep.expanduser().resolve()
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError("--keep", f"takes a new or an empty folder, {folder} is neither.")
    yield folder


@contextmanager
def server_in(folder: Path) -> Iterator[EmbeddedServer]:
    """Run a PostgreSQL in a folder; afterwards it is gone.

    Raises:
        ConfigError: It cannot run here.
        StoreUnavailable: It did not start in time.
    """
    patience = _START_SECONDS
    try:
        with EmbeddedServer.start(folder) as server:
            patience = _STOP_SECONDS
            yield server
    finally:
        _wait_until_gone(folder, patience)


def _wait_until_gone(folder: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while sys.platform != "win32" and (folder / supervisor.SUPERVISOR).exists() and time.monotonic() < deadline:
        if supervisor.try_lock(folder / supervisor.SUPERVISOR, fcntl.LOCK_EX) is not None:
            return
        time.sleep(_POLL_SECONDS)


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Write the log to a file instead of the screen; if all ends badly, its end is shown."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_LOG_LINE))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read the output has had enough
    except Exception:
        if tail := file.read_text(encoding="utf-8").splitlines()[-_LOG_TAIL:]:
            click.echo("\n".join(["The end of the log:", *tail]), err=True)
        raise
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
