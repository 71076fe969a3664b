"""The worst nights of a database: it is restarted, fails over, is full, crowded or read-only; every job ends once."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import time

import asyncpg
import pytest
from invariants import Journal, violations
from proxy import Proxy
from servers import Server
from support import eventually

from aiopgq import App
from aiopgq._store.connection import ConnectSettings
from aiopgq._store.schema import migrate
from aiopgq.errors import StoreUnavailable

OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'aiopgq %'"
KILL = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'aiopgq %'"
NEVER = 300
LEFT = "SELECT count(*) FROM aiopgq.jobs"
# Each of a worker's loops tries again ever more slowly: so often in the first seconds, then every few.
MOST_TRIES_A_LOOP = 8
LOOPS = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The data of a migrated server that is down."""
    server = Server(tmp_path_factory.mktemp("made"))
    server.make()

    async def furnish():
        await server.start()
        await migrate(ConnectSettings(server.dsn, "aiopgq"))
        await server.stop()

    asyncio.run(furnish())
    return server.data


@pytest.fixture
async def servers(made, tmp_path):
    """Makes servers with a fresh schema, and ends them."""
    started = []

    def new(**settings):
        server = Server(tmp_path / f"server{len(started)}", **settings)
        server.copy(made)
        started.append(server)
        return server

    yield new
    for server in started:
        await server.stop("immediate")


@pytest.fixture
async def server(servers):
    server = servers()
    await server.start()
    return server


@pytest.fixture
def journal():
    journal = Journal()
    yield journal
    journal.check()


@pytest.fixture
def impatient(monkeypatch):
    """Callers of enqueue give up after a second."""
    monkeypatch.setattr("aiopgq._flow.enqueue.DEADLINE", 1.0)


class Gate:
    """A task whose runs last until the gate is opened."""

    def __init__(self, app, journal):
        self._open = asyncio.Event()
        self.handles = []

        @app.task(name="t")
        async def task() -> None:
            with journal.run():
                await self._open.wait()

        self.task = task

    def open(self):
        self._open.set()

    async def enqueue(self, count):
        self.handles += [await self.task.enqueue() for _ in range(count)]

    async def enqueue_in_vain(self):
        """Enqueue a job while that cannot work; return the error."""
        with pytest.raises(StoreUnavailable) as caught:
            await self.task.enqueue()
        assert caught.value.id is not None
        return caught.value

    async def repeat(self, error):
        """Do what the error says; twice, for that must not matter."""
        handle = await self.task.options(id=error.id).enqueue()
        again = await self.task.options(id=error.id).enqueue()
        assert handle.id == again.id == error.id
        self.handles.append(handle)


def identity(worker):
    return worker._incarnation.identity.id


async def all_ended_once(server, gate, journal, *, runs=None):
    """Wait until nothing is left to do; every job has run once and is completed."""

    async def none_left():
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            return await server.ask(LEFT) == 0

    await eventually(none_left, within=30, every=0.1, what="all jobs have ended")
    connection = await asyncpg.connect(server.dsn)
    try:
        rows = await connection.fetch("SELECT id, status, attempts, last_error FROM aiopgq.all_jobs")
        assert await violations(connection) == {}
    finally:
        await connection.close()
    assert {(row["status"], row["attempts"], row["last_error"]) for row in rows} == {("completed", 1, None)}
    assert sorted(row["id"] for row in rows) == sorted(job.id for job in gate.handles)
    assert sorted(journal.jobs) == sorted(job.id for job in gate.handles)


async def well(worker, within=30):
    """Wait until the worker says that all is well with it."""
    await eventually(lambda: worker.health()[:3] == (True, True, True), within=within, what="the worker is well")


def said(caplog, level=logging.WARNING):
    return [f"{one.name}: {one.getMessage()}" for one in caplog.records if one.levelno >= level and is_ours(one)]


def is_ours(record):
    return record.name.startswith("aiopgq.")


def tries(caplog):
    """What failed, repeats included."""
    return [line for line in said(caplog, logging.DEBUG) if "trying again" in line or "cannot" in line]


# restarts


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_restart_of_the_server_costs_no_job(server, journal, impatient, monkeypatch, caplog, how):
    app = App(server.dsn)
    gate = Gate(app, journal)
    async with app, app.worker(concurrency=8) as worker:
        await gate.enqueue(5)
        await eventually(lambda: worker.health().running == 5)
        before = identity(worker)
        await server.stop(how)
        await eventually(lambda: not worker.health().claiming and not worker.health().listening)
        refused = await gate.enqueue_in_vain()
        gate.open()
        await eventually(lambda: worker.health().unsettled == 5)
        monkeypatch.setattr("aiopgq._flow.enqueue.DEADLINE", 30.0)
        patient = asyncio.create_task(gate.task.enqueue())
        await server.start()
        gate.handles.append(await patient)
        await gate.repeat(refused)
        await all_ended_once(server, gate, journal)
        await well(worker)
        assert identity(worker) == before
    assert len(said(caplog)) <= 2 * LOOPS


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_an_idle_worker_that_polls_never_serves_again_after_a_restart(server, journal, how):
    app = App(server.dsn)
    gate = Gate(app, journal)
    gate.open()
    async with app, app.worker(concurrency=4, poll_interval=NEVER) as worker:
        await well(worker)
        before = identity(worker)
        await server.stop(how)
        await server.start()
        await gate.enqueue(20)
        await all_ended_once(server, gate, journal)
        assert identity(worker) == before


@pytest.mark.slow
async def test_an_idle_worker_serves_again_after_twenty_seconds_without_a_server(server, journal, caplog):
    caplog.set_level(logging.DEBUG, "aiopgq")
    app = App(server.dsn)
    gate = Gate(app, journal)
    gate.open()
    async with app, app.worker(concurrency=4) as worker:
        await well(worker)
        before = identity(worker)
        await server.stop("immediate")
        began, spent = time.monotonic(), time.process_time()
        refused = await gate.enqueue_in_vain()
        assert time.monotonic() - began >= 9
        await eventually(lambda: time.monotonic() - began >= 20, within=30, every=0.5)
        spent = time.process_time() - spent
        most = MOST_TRIES_A_LOOP * LOOPS + 20 // 3 * LOOPS
        assert LOOPS <= len(tries(caplog)) <= most
        assert len([line for line in said(caplog) if "trying again" in line]) <= LOOPS
        assert spent < 5
        await server.start()
        await gate.repeat(refused)
        await gate.enqueue(20)
        await all_ended_once(server, gate, journal)
        assert identity(worker) == before
        await well(worker)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_half_a_minute_without_a_server_ends_no_run_and_repeats_none(server, journal, caplog):
    # All settings are the defaults: a lease of a minute.
    apps = [App(server.dsn) for _ in range(2)]
    gates = [Gate(app, journal) for app in apps]
    async with apps[0], apps[1], apps[0].worker() as one, apps[1].worker() as other:
        await gates[0].enqueue(12)
        await eventually(lambda: one.health().running + other.health().running == 12)
        before = [identity(one), identity(other)]
        began = time.monotonic()
        await server.stop("immediate")
        await eventually(lambda: time.monotonic() - began >= 15, within=30, every=0.5)
        # The jobs of one worker end while nobody can be told, those of the other afterwards.
        assert one.health().running + other.health().running == 12
        gates[0].open()
        await eventually(lambda: one.health().running == 0 and one.health().unsettled > 0)
        await eventually(lambda: time.monotonic() - began >= 30, within=30, every=0.5)
        assert other.health().running > 0
        await server.start()
        await eventually(lambda: one.health().unsettled == 0, within=20, what="what waited is written")
        gates[1].open()
        await all_ended_once(server, gates[0], journal)
        assert [identity(one), identity(other)] == before
        await well(one)
        await well(other)
    assert "silent" not in caplog.text
    assert "lost its lease" not in caplog.text
    assert "no longer ours" not in caplog.text


# failover


class Pair:
    """A primary and its standby; what the primary has acknowledged, the standby has as well."""

    def __init__(self, primary, standby):
        self.primary = primary
        self.standby = standby
        self.dsn = f"postgresql://postgres@{primary.address},{standby.address}/postgres?target_session_attrs=read-write"

    async def begin(self):
        await self.primary.start()
        self.standby.follow(self.primary)
        await self.standby.start()

        async def follows():
            return await self.primary.ask("SELECT state = 'streaming' FROM pg_stat_replication")

        await eventually(follows, within=30, what="the standby follows")
        await self.primary.set("synchronous_standby_names", "*")

        async def vouches():
            return await self.primary.ask("SELECT sync_state = 'sync' FROM pg_stat_replication")

        await eventually(vouches, what="commits wait for the standby")

    async def promote(self):
        assert await self.standby.ask("SELECT pg_promote()")


@pytest.fixture
async def pair(servers):
    pair = Pair(servers(), servers())
    await pair.begin()
    return pair


@pytest.mark.slow
async def test_after_a_failover_work_goes_on_and_every_acknowledged_job_ends_once(pair, journal, caplog):
    caplog.set_level(logging.DEBUG, "aiopgq")
    app = App(pair.dsn)
    gate = Gate(app, journal)

    @app.task(name="quick")
    async def quick() -> None:
        with journal.run():
            await asyncio.sleep(0.002)

    over = asyncio.Event()

    async def produce():
        while not over.is_set():
            handle = await quick.enqueue()
            gate.handles.append(handle)

    async with app, app.worker({"default": 8}) as worker:
        await gate.enqueue(4)
        await eventually(lambda: worker.health().running >= 4)
        before = identity(worker)
        producers = [asyncio.create_task(produce()) for _ in range(3)]
        await eventually(lambda: len(gate.handles) > 50)
        await pair.primary.stop("immediate")
        await eventually(lambda: not worker.health().claiming)
        caplog.clear()
        sessions = pair.standby.log.count("connection authorized")
        moment = time.monotonic()
        await eventually(lambda: time.monotonic() - moment > 3, every=0.2)
        # Connected to and found in recovery, again and again, but ever more slowly.
        assert LOOPS - 3 <= len(tries(caplog)) <= MOST_TRIES_A_LOOP * LOOPS
        assert pair.standby.log.count("connection authorized") - sessions <= 2 * MOST_TRIES_A_LOOP * LOOPS
        await pair.promote()
        acknowledged = len(gate.handles)
        await eventually(lambda: len(gate.handles) > acknowledged + 50, within=20, what="jobs are enqueued again")
        over.set()
        await asyncio.gather(*producers)
        gate.open()
        await all_ended_once(pair.standby, gate, journal)
        assert identity(worker) == before
        await well(worker)


async def test_a_primary_that_lives_on_without_writing_is_left_for_its_successor(pair, journal):
    app = App(pair.dsn)
    gate = Gate(app, journal)
    # What listens hears nothing from the successor, for it is not refused; looking is the net.
    async with app, app.worker(poll_interval=1) as worker:
        await gate.enqueue(5)
        await eventually(lambda: worker.health().running == 5)
        before = identity(worker)
        # Nobody is disconnected: each connection that is open leads to a server that refuses.
        await pair.primary.set("default_transaction_read_only", "on")
        await pair.promote()
        gate.open()
        await gate.enqueue(5)
        await all_ended_once(pair.standby, gate, journal)
        assert identity(worker) == before


async def test_a_primary_that_vanishes_without_a_word_does_not_hide_its_successor(pair, journal, monkeypatch):
    # A host that is gone refuses nothing: connecting to it takes all the time there is.
    monkeypatch.setattr("aiopgq._store.connection.CONNECT_TIMEOUT", 1.0)
    async with Proxy(pair.primary.dsn) as proxy:
        app = App(pair.dsn.replace(pair.primary.address, proxy.address))
        gate = Gate(app, journal)
        async with app, app.worker() as worker:
            await gate.enqueue(5)
            await eventually(lambda: worker.health().running == 5)
            before = identity(worker)
            proxy.black_hole = True
            proxy.cut()
            # The primary lives on behind it, where nobody can reach it.
            await pair.promote()
            gate.open()
            await gate.enqueue(5)
            await all_ended_once(pair.standby, gate, journal)
            await well(worker)
            assert identity(worker) == before


async def test_a_standby_is_asked_ever_more_slowly_and_called_by_its_name(pair, caplog):
    caplog.set_level(logging.DEBUG, "aiopgq")
    app = App(pair.primary.dsn, listen_dsn=pair.standby.dsn)

    @app.task(name="t")
    async def task() -> str:
        return "done"

    async with app, app.worker():
        moment, spent = time.monotonic(), time.process_time()
        await eventually(lambda: time.monotonic() - moment > 3, every=0.2)
        assert time.process_time() - spent < 2
        for loop in ("aiopgq.listen", "aiopgq.pulse"):
            lines = [line for line in tries(caplog) if line.startswith(loop)]
            assert 2 <= len(lines) <= MOST_TRIES_A_LOOP
            assert all("recovery" in line or "read-only" in line for line in lines)
            assert len([line for line in said(caplog) if line.startswith(loop)]) == 1
        assert await (await task.enqueue()).result(timeout=5) == "done"


async def test_a_worker_started_on_a_standby_serves_when_that_is_promoted(pair, journal, caplog):
    caplog.set_level(logging.DEBUG, "aiopgq")
    app, producer = App(pair.standby.dsn), App(pair.dsn)
    gate = Gate(app, journal)
    gate.open()
    async with producer:
        waiting = Gate(producer, journal)
        await waiting.enqueue(5)
        gate.handles = waiting.handles
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        await eventually(lambda: len(tries(caplog)) >= 3)
        assert all("recovery" in line or "read-only" in line for line in tries(caplog))
        assert len(said(caplog)) == 1
        await pair.primary.stop("immediate")
        await pair.promote()
        await all_ended_once(pair.standby, gate, journal)
    finally:
        worker.stop()
        await running


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")
async def test_the_kernel_watches_over_every_connection_of_ours(server, monkeypatch):
    opened, connect = [], asyncpg.connect

    async def noted(*args, **options):
        connection = await connect(*args, **options)
        opened.append(connection)
        return connection

    monkeypatch.setattr(asyncpg, "connect", noted)
    app = App(server.dsn)

    @app.task(name="t")
    async def task() -> None: ...

    async with app, app.worker() as worker:
        await well(worker)
        await (await task.enqueue()).result(timeout=5)
        ours = [one._transport.get_extra_info("socket") for one in opened if not one.is_closed()]
        assert len(ours) >= LOOPS
        for plug in ours:
            assert plug.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


# no room


async def test_a_database_that_is_read_only_for_a_while_costs_no_job(server, journal, impatient, caplog):
    app = App(server.dsn)
    gate = Gate(app, journal)
    async with app, app.worker(concurrency=8) as worker:
        await gate.enqueue(5)
        await eventually(lambda: worker.health().running == 5)
        before = identity(worker)
        await server.set("default_transaction_read_only", "on")
        await server.ask(KILL)
        await eventually(lambda: not worker.health().claiming)
        refused = await gate.enqueue_in_vain()
        assert "read-only" in str(refused)
        gate.open()
        await eventually(lambda: worker.health().unsettled == 5)
        await server.set("default_transaction_read_only", "off")
        await gate.repeat(refused)
        await all_ended_once(server, gate, journal)
        assert identity(worker) == before
        await well(worker)
    assert len(said(caplog)) <= 2 * LOOPS


async def test_a_server_without_a_free_connection_costs_no_job(servers, journal, impatient, caplog):
    server = servers(max_connections=25)
    await server.start()
    app = App(server.dsn)
    gate = Gate(app, journal)
    keeper = await asyncpg.connect(server.dsn)
    async with app, app.worker(concurrency=8) as worker, contextlib.AsyncExitStack() as crowd:
        await gate.enqueue(5)
        await eventually(lambda: worker.health().running == 5)
        before = identity(worker)

        async def crowded_out():
            await keeper.fetchval(KILL)
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while True:
                    one = await asyncpg.connect(server.dsn)
                    crowd.callback(one.terminate)
            return await keeper.fetchval(OURS) == 0

        await eventually(crowded_out, what="nobody of ours is connected")
        await eventually(lambda: not worker.health().claiming)
        refused = await gate.enqueue_in_vain()
        assert "too many clients" in str(refused)
        gate.open()
        await eventually(lambda: worker.health().unsettled == 5)
        await crowd.aclose()
        await gate.repeat(refused)
        await all_ended_once(server, gate, journal)
        assert identity(worker) == before
        await well(worker)
    await keeper.close()
    assert len(said(caplog)) <= 2 * LOOPS


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of its own that can be filled."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=64m,mode=0755", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["/bin/umount", "--lazy", folder], check=True)


def fill(folder):
    """Take all the room there is; return what must go to have it back."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    return ballast


@pytest.mark.slow
@pytest.mark.parametrize("full", ["base", "pg_wal"])
async def test_a_disk_that_is_full_for_a_while_costs_no_job(
    small_disk, servers, journal, impatient, monkeypatch, caplog, full
):
    server = servers()
    server.move(full, small_disk)
    await server.start()
    app = App(server.dsn)
    gate = Gate(app, journal)

    @app.task(name="large")
    async def large(text: str) -> None:
        with journal.run():
            pass

    async with app, app.worker(concurrency=8) as worker:
        await gate.enqueue(5)
        await eventually(lambda: worker.health().running == 5)
        before = identity(worker)
        ballast = fill(small_disk)
        refused = None
        while refused is None:
            try:
                # Nothing that could be compressed.
                gate.handles.append(await large.enqueue(secrets.token_hex(100_000)))
            except StoreUnavailable as error:
                refused = error
        gate.open()
        if full == "base":
            assert "No space left on device" in str(refused)
        else:
            # Without its log PostgreSQL gives up, and comes back only when there is room.
            assert "PANIC" in server.log
            await eventually(lambda: not server.runs, within=20, what="PostgreSQL has given up")
            await eventually(lambda: worker.health().unsettled >= 5)
        ballast.unlink()
        if full == "pg_wal":
            await server.start()
        monkeypatch.setattr("aiopgq._flow.enqueue.DEADLINE", 10.0)
        gate.handles.append(await large.options(id=refused.id).enqueue(secrets.token_hex(100_000)))
        await gate.enqueue(5)
        await all_ended_once(server, gate, journal)
        assert identity(worker) == before
        await well(worker)
    assert len(said(caplog)) <= 3 * LOOPS
