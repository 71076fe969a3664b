"""The process that owns one embedded PostgreSQL and stops it once nobody uses it.

    python -I supervisor.py FOLDER BINARIES PROMISE

It is run as a plain script and imports the standard library only, so it starts at once and stays small.
It has one thread, so a child of its may safely become somebody else before exec.

Three locks in the folder keep order; the kernel drops a lock however its holder dies.

    aiopgq.users        shared by every process that uses the server. The supervisor waits to have it alone:
                        then the last user is gone, and a newcomer waits until the server has stopped.
    aiopgq.supervisor   held for as long as a supervisor promises that the server outlives its users. The
                        launcher takes it and hands it over, so two supervisors never meet.
    aiopgq.server       inherited by every process of PostgreSQL. Once it is free, nothing touches the data.

The answer on standard output is `ready`, `refused` and a reason, or nothing: then the log tells why.
"""

import contextlib
import ctypes
import hashlib
import locale
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import fcntl
    import pwd

USERS = "aiopgq.users"
SUPERVISOR = "aiopgq.supervisor"
SERVER = "aiopgq.server"
SOCKET = "aiopgq.socket"
LOG = "server.log"

READY = "ready"
REFUSED = "refused "
PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
# sun_path holds 104 bytes on macOS and the BSDs, 108 on Linux, the closing zero included.
SOCKET_PATH_BYTES = 100

ANSWER_SECONDS = 5.0
INITDB_SECONDS = 60.0
# PostgreSQL is asked ever less politely to stop: fast, immediate, not at all.
STOPPING_SECONDS = {"SIGINT": 20.0, "SIGQUIT": 5.0, "SIGKILL": 5.0}
ORPHAN_SECONDS = 30.0
POLL_SECONDS = 0.01
WATCH_SECONDS = 0.1
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
INITDB_OPTIONS = ("-U", "postgres", "-A", "trust", "-E", "UTF8")
SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "fsync": "on",
    "shared_buffers": "128MB",
    "max_connections": "100",
    "logging_collector": "off",
}


class Refused(Exception):
    """The server cannot run as things are; waiting does not help."""


@dataclass(frozen=True)
class Identity:
    """Who PostgreSQL runs as.

    Attributes:
        become: Turns a child into that user between fork and exec.
        owner: The user and group that own what PostgreSQL writes, if they are not the supervisor's own.
    """

    become: Callable[[], None] = lambda: None
    owner: tuple[int, int] | None = None

    def give(self, path: Path) -> None:
        """Make `path` belong to the one who will write it."""
        if self.owner:
            os.chown(path, *self.owner)


def try_lock(path: Path, operation: int) -> int | None:
    """Lock a file without waiting.

    Returns:
        A descriptor that holds the lock until it is closed, or None while somebody else is in the way.

    Raises:
        OSError: The file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def server_version(sockets: Path) -> str | None:
    """Open a session on the server and return its version, None if it does not serve.

    A session proves more than an open socket: PostgreSQL listens before it has recovered and while it stops.
    """
    wishes = b"user\0postgres\0database\0postgres\0application_name\0aiopgq embedded\0\0"
    greeting = struct.pack("!ii", len(wishes) + 8, 3 << 16) + wishes
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_SECONDS)
            line.connect(str(sockets / SOCKET_NAME))
            line.sendall(greeting)
            heard = b""
            while not (version := re.search(rb"server_version\0([^ \0]+)[ \0]", heard)):
                more = line.recv(4096)
                if not more:
                    return None
                heard += more
            line.sendall(b"X" + struct.pack("!i", 4))
    except OSError:
        return None
    return version[1].decode()


def main(folder: Path, binaries: Path, promise: int) -> None:
    """Start the server of `folder`, say so, and stay until it is gone.

    `promise` is the descriptor that holds the lock `aiopgq.supervisor`.
    """
    # The launcher waits for this process only, so no user of the server ever has a zombie for a child.
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    # PGPORT and its like are meant for clients of other servers; PostgreSQL itself would obey them.
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    alive = _lock_server(folder)
    try:
        identity = _choose_identity(folder, binaries)
        sockets = _make_sockets(folder, identity)
        _initialise(folder / "data", binaries, identity, alive)
    except Refused as refusal:
        _answer(f"{REFUSED}{refusal}")
        return
    _forget_stale_pid(folder / "data")
    postmaster = _start(folder / "data", sockets, binaries, identity, alive)

    def stop(_signal: int, _frame: object) -> None:
        # There may be users, so the promise is withdrawn first: nobody attaches to a server about to stop.
        fcntl.flock(promise, fcntl.LOCK_UN)
        postmaster.send_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, stop)
    _watch(folder, postmaster, sockets)
    if sockets.parent != folder:
        with contextlib.suppress(OSError):
            sockets.rmdir()


def _answer(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the launcher may have died meanwhile
        os.write(sys.stdout.fileno(), text.encode())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _lock_server(folder: Path) -> int:
    """Wait until no process of an earlier PostgreSQL is left, and keep the lock.

    One is left when its supervisor was killed: Linux has told it to stop, elsewhere that remains to be done.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    alive = try_lock(folder / SERVER, fcntl.LOCK_EX)
    orphan = _recorded_pid(folder / "data")
    if alive is None and orphan and sys.platform != "linux":
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGINT)
    while alive is None:
        if time.monotonic() > deadline:
            sys.exit(f"an earlier PostgreSQL in {folder} did not stop within {ORPHAN_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
        alive = try_lock(folder / SERVER, fcntl.LOCK_EX)
    return alive


def _choose_identity(folder: Path, binaries: Path) -> Identity:
    """Find somebody PostgreSQL agrees to run as; it refuses root.

    Root becomes the owner of the data if that is somebody else, or enters a user namespace without a mapping,
    where PostgreSQL believes to be nobody, yet reads and writes as root. Where those are forbidden, as in most
    containers, it is truly `nobody`, who must be able to reach everything.
    """
    if os.geteuid() != 0:
        return Identity()
    data = folder / "data"
    if data.exists() and data.stat().st_uid != 0:
        owner = data.stat()
        identity = _user(owner.st_uid, owner.st_gid)
        if _can_work(identity, binaries, folder):
            return identity
        raise Refused(
            f"the data in {folder} belong to user {owner.st_uid}, who cannot reach them or {binaries}. "
            "Run this program as that user."
        )
    identity = Identity(_enter_user_namespace)
    if _can_work(identity, binaries, folder):
        return identity
    nobody = pwd.getpwnam("nobody")
    identity = _user(nobody.pw_uid, nobody.pw_gid)
    if not data.exists() and _can_work(identity, binaries, folder.parent):
        identity.give(folder)
        return identity
    raise Refused(
        "PostgreSQL does not run as root, and neither a user namespace nor the user 'nobody' lets it use "
        f"{binaries} and {folder}. Run this program as an ordinary user, or give a new folder that everybody "
        "can reach."
    )


def _can_work(identity: Identity, binaries: Path, folder: Path) -> bool:
    def try_out() -> None:
        identity.become()
        os.chdir(folder)

    try:
        subprocess.run(  # noqa: S603  # PostgreSQL's own program, no shell
            [binaries / "postgres", "--version"],
            preexec_fn=try_out,
            capture_output=True,
            check=True,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _user(user: int, group: int) -> Identity:
    def become() -> None:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)

    return Identity(become, (user, group))


def _enter_user_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "cannot enter a user namespace")


def _make_sockets(folder: Path, identity: Identity) -> Path:
    """Make the private folder of the socket and record it for those who attach.

    It is inside the server's folder unless the path is too long for a socket, or has a comma, which would
    separate two hosts in a DSN.
    """
    sockets = folder / "socket"
    if len(os.fsencode(sockets / SOCKET_NAME)) > SOCKET_PATH_BYTES or "," in str(sockets):
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"aiopgq-{os.geteuid()}-{digest}"
    with contextlib.suppress(FileExistsError):
        sockets.mkdir(mode=0o700)
    # Others can write to the temporary folder, and whoever owns the socket's folder could pose as our server.
    found = sockets.lstat()
    mine = found.st_uid in (os.geteuid(), identity.owner and identity.owner[0])
    if not mine or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise Refused(f"{sockets} belongs to somebody else or is open to others. Remove it.")
    identity.give(sockets)
    for leftover in sockets.iterdir():  # of a server that was killed
        leftover.unlink()
    fresh = folder / f"{SOCKET}.new"
    fresh.write_bytes(os.fsencode(sockets))
    identity.give(fresh)
    fresh.replace(folder / SOCKET)
    return sockets


def _initialise(data: Path, binaries: Path, identity: Identity, alive: int) -> None:
    """Make the data folder if there is none, whole or not at all."""
    if data.exists():
        return
    growing = data.with_name("data.new")
    shutil.rmtree(growing, ignore_errors=True)
    growing.mkdir(mode=0o700)
    identity.give(growing)
    made = subprocess.run(  # noqa: S603  # PostgreSQL's own program, no shell
        [binaries / "initdb", "-D", growing, *INITDB_OPTIONS, f"--locale={_locale()}"],
        preexec_fn=_child(identity, signal.SIGKILL),
        pass_fds=[alive],
        stdout=sys.stderr,
        timeout=INITDB_SECONDS,
        check=False,
    )
    if made.returncode:
        sys.exit(f"initdb failed with exit code {made.returncode}")
    growing.rename(data)
    # initdb has synced what is inside; the name is ours to sync.
    parent = os.open(data.parent, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)


def _locale() -> str:
    try:
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
    except locale.Error:
        return "C"
    return "C.UTF-8"


def _start(data: Path, sockets: Path, binaries: Path, who: Identity, alive: int) -> subprocess.Popen[bytes]:
    quoted = str(sockets).replace('"', '""')
    command: list[str | Path] = [binaries / "postgres", "-D", data]
    for name, value in {**SETTINGS, "unix_socket_directories": f'"{quoted}"'}.items():
        command += ["-c", f"{name}={value}"]
    return subprocess.Popen(  # noqa: S603  # PostgreSQL's own program, no shell
        command,
        preexec_fn=_child(who, signal.SIGINT),  # noqa: PLW1509  # this process has one thread
        pass_fds=[alive],
        stdout=sys.stderr,
    )


def _child(identity: Identity, when_orphaned: signal.Signals) -> Callable[[], None]:
    """Return what a child does before exec: become somebody, ask for a signal at the supervisor's death."""
    supervisor = os.getpid()

    def prepare() -> None:
        identity.become()  # first, for it clears the request
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, when_orphaned)
            if os.getppid() != supervisor:
                os._exit(1)

    return prepare


def _recorded_pid(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _forget_stale_pid(data: Path) -> None:
    """Remove a postmaster.pid whose number is another program's by now, or a zombie's.

    PostgreSQL would take either for a postmaster and refuse to start. Both are common in containers, where
    numbers are few and the first process may not reap.
    """
    process = Path(f"/proc/{_recorded_pid(data)}")
    with contextlib.suppress(PermissionError):
        try:
            stale = (process / "cwd").readlink() != data
        except FileNotFoundError:
            stale = process.exists()  # a zombie has no working folder
        if stale:
            (data / "postmaster.pid").unlink()


def _watch(folder: Path, postmaster: subprocess.Popen[bytes], sockets: Path) -> None:
    """Report the server once it is ready, stop it once nobody uses or awaits it, return when it is gone."""
    ready = False
    while postmaster.poll() is None:
        if not ready and server_version(sockets):
            ready = True
            _answer(READY)
        # Asked for again and again: a thread that waits would let this process die in two steps, and PostgreSQL
        # be told of it before the locks are free. The lock is kept, so a newcomer waits until this process ends.
        if try_lock(folder / USERS, fcntl.LOCK_EX) is not None:
            _stop(postmaster)
        time.sleep(WATCH_SECONDS if ready else POLL_SECONDS)


def _stop(postmaster: subprocess.Popen[bytes]) -> None:
    for name, patience in STOPPING_SECONDS.items():
        postmaster.send_signal(signal.Signals[name])
        with contextlib.suppress(subprocess.TimeoutExpired):
            postmaster.wait(patience)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
