"""What a user of the embedded server calls: attach to the server of a folder, or start it."""

import contextlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from aiopgq.embedded import supervisor
from aiopgq.embedded.binaries import find_binaries
from aiopgq.errors import ConfigError, StoreUnavailable

if sys.platform != "win32":
    import fcntl

__all__ = ["EmbeddedServer"]

START_SECONDS = 60.0
POLL_SECONDS = 0.01
LOG_TAIL_BYTES = 2000

logger = logging.getLogger("aiopgq.embedded")


class EmbeddedServer:
    """This process's hold on the PostgreSQL of a folder.

    The server runs for as long as any process holds it, and stops when the last one lets go or dies. A
    process forked from this one is one more holder.

    Attributes:
        dsn: Where to connect, as the superuser `postgres`.
        folder: The server's folder, resolved.
        version: The server's version, such as "18.6".
    """

    def __init__(self, folder: Path, dsn: str, version: str, hold: int) -> None:
        self.folder = folder
        self.dsn = dsn
        self.version = version
        self._hold: int | None = hold

    @classmethod
    def start(cls, folder: str | Path) -> Self:
        """Attach to the folder's server; start it, and make its data, if need be.

        Blocks for milliseconds to attach, for a second or so to make the data, and never much longer than
        a minute. Any number of processes and threads may call it at once.

        Args:
            folder: Made if missing. Every spelling of one folder means one server.

        Returns:
            The hold. The server accepts connections, and does so until `close()`.

        Raises:
            ConfigError: The folder holds something else or cannot be used, there are no PostgreSQL programs
                of the right major, or the system (Windows, root in a locked-down container) cannot run them.
            StoreUnavailable: The server did not start in time; the message ends with the end of its log.
        """
        if sys.platform == "win32":
            raise ConfigError("embedded", "Windows is not supported. Give the DSN of a PostgreSQL server instead.")
        deadline = time.monotonic() + START_SECONDS
        home = Path(folder).expanduser().resolve()
        try:
            _claim(home)
            hold = _hold(home, deadline)
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, hold)
                sockets, version, how = _reach(home, deadline)
                undo.pop_all()
        except OSError as error:
            raise ConfigError("embedded", f"cannot use the folder {home}: {error}") from error
        logger.info("%s PostgreSQL %s in %s", how, version, home)
        host = quote(os.fsencode(sockets), safe="/")
        # The port names the socket's file; without it a PGPORT in the environment would.
        dsn = f"postgresql://postgres@/postgres?host={host}&port={supervisor.PORT}"
        return cls(home, dsn, version, hold)

    def close(self) -> None:
        """Let go of the server; the last one to do so stops it. A second call does nothing."""
        hold, self._hold = self._hold, None
        if hold is not None:
            # Closed, not unlocked: a forked process shares the lock and may still use the server.
            os.close(hold)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _claim(folder: Path) -> None:
    """Make the folder ours, or refuse it untouched.

    The users' lock is the first file ever made in it: a folder that holds others but not this one is foreign.

    Raises:
        ConfigError: It holds something else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {path.name for path in folder.iterdir()}
    if names and supervisor.USERS not in names:
        raise ConfigError(
            "embedded",
            f"the folder {folder} holds files that are not an embedded server's. Give a new or an empty one.",
        )


def _hold(folder: Path, deadline: float) -> int:
    """Become one of the server's users; while its supervisor stops it, wait.

    Raises:
        StoreUnavailable: The server did not stop in time.
    """
    while (hold := supervisor.try_lock(folder / supervisor.USERS, fcntl.LOCK_SH)) is None:
        _wait(folder, deadline)
    return hold


def _reach(folder: Path, deadline: float) -> tuple[Path, str, str]:
    """Reach a server that will not be stopped while it is held, starting it if no supervisor vouches for one.

    Returns:
        The folder of the socket, the server's version, and whether it was "started" or "attached to".

    Raises:
        ConfigError: It cannot be started here.
        StoreUnavailable: It did not start in time.
    """
    how = "attached to"
    while True:
        promise = supervisor.try_lock(folder / supervisor.SUPERVISOR, fcntl.LOCK_EX)
        if promise is not None:
            try:
                _start(folder, promise, deadline)
            finally:
                os.close(promise)
            how = "started"
        sockets = _sockets(folder)
        version = supervisor.server_version(sockets) if sockets else None
        if sockets and version:
            return sockets, version, how
        _wait(folder, deadline)


def _sockets(folder: Path) -> Path | None:
    try:
        return Path(os.fsdecode((folder / supervisor.SOCKET).read_bytes()))
    except FileNotFoundError:
        return None


def _start(folder: Path, promise: int, deadline: float) -> None:
    """Run a supervisor and wait for its answer.

    Raises:
        ConfigError: There are no fitting programs, or the supervisor refused.
        StoreUnavailable: The server failed, or was not ready in time.
    """
    binaries = find_binaries(folder)
    log = folder / supervisor.LOG
    with contextlib.suppress(FileNotFoundError):
        # A log for each start, and the one before: neither grows without end, nor is a crash forgotten.
        log.replace(log.with_suffix(".log.old"))
    with log.open("ab") as stderr:
        log.chmod(0o600)
        try:
            answer = subprocess.run(  # noqa: S603  # our own program, no shell
                [sys.executable, "-I", supervisor.__file__, folder, binaries, str(promise)],
                pass_fds=[promise],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                timeout=max(deadline - time.monotonic(), POLL_SECONDS),
                check=False,
            ).stdout.decode()
        except subprocess.TimeoutExpired:
            raise _unavailable(folder) from None
    if answer.startswith(supervisor.REFUSED):
        raise ConfigError("embedded", answer.removeprefix(supervisor.REFUSED))
    if answer != supervisor.READY:
        raise _unavailable(folder)


def _wait(folder: Path, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise _unavailable(folder)
    time.sleep(POLL_SECONDS)


def _unavailable(folder: Path) -> StoreUnavailable:
    tail = ""
    with contextlib.suppress(FileNotFoundError):
        tail = (folder / supervisor.LOG).read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    return StoreUnavailable(f"start the embedded PostgreSQL in {folder}; its log ends:\n{tail}\n")
