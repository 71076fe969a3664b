"""Many jobs, real processes, a server that is torn down under them, and dice that choose what breaks next.

`AIOPGQ_CHAOS_SEED` repeats a run's choices, `AIOPGQ_CHAOS_JOBS` sets the number of jobs, `AIOPGQ_CHAOS_FAULTS` that
of the faults.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections import Counter

import asyncpg
import pytest
from effects import PROGRAM, Effects
from faces.cli import Cli, alive
from invariants import violations
from proxy import Proxy
from support import eventually

from aiopgq import App
from aiopgq._store.connection import ConnectSettings
from aiopgq._store.schema import migrate
from aiopgq._words.clock import uuid7
from aiopgq.embedded import EmbeddedServer
from aiopgq.errors import StoreError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEASE = 3
HOSTS = 2
CHILDREN = 2
SLOTS = 8
# claim, settle, beside, pulse and listen for each worker process; those of the dead may be on their way out.
MOST_CONNECTIONS = 5 * HOSTS * CHILDREN * 3 // 2
LINES_A_FAULT = 30
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'aiopgq %'"
UNFINISHED = "SELECT count(*) FROM aiopgq.jobs"
KILL = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE application_name LIKE 'aiopgq %' AND random() < 0.5"""
AFTER_THE_END = """
    SELECT e.job, e.claim, e.began, a.finished_at FROM public.effects e JOIN aiopgq.all_jobs a ON a.id = e.job
    WHERE e.began > a.finished_at"""


class Ground:
    """The server, a proxy before it, the workers, and what breaks them."""

    def __init__(self, server, proxy, cli):
        self.server = server
        self.proxy = proxy
        self.cli = cli
        self.dice = None
        self.story = []
        self.began = time.monotonic()
        self.most_connections = 0
        self.frozen = set()
        self.ever_frozen = set()
        self.hosts = [self.host() for _ in range(HOSTS)]
        self.lost_hosts = []

    def host(self):
        options = ("--processes", CHILDREN, "--concurrency", SLOTS, "--no-job-log", "--poll-interval", 1)
        return self.cli.run("-A", "work", *options, lease=str(LEASE))

    @staticmethod
    def children_of(host):
        return [pid for pid in map(int, re.findall(r"started worker process (\d+)", host.err)) if alive(pid)]

    def somebody(self):
        """Return a worker process that is at work, None if all are just starting."""
        pids = [pid for host in self.hosts for pid in self.children_of(host) if pid not in self.frozen]
        return self.dice.choice(pids) if pids else None

    @property
    def lines(self):
        return [line for host in self.hosts + self.lost_hosts for line in host.lines]

    async def ask(self, sql):
        """Ask the server itself, past the proxy, until it answers."""

        async def answer():
            try:
                connection = await asyncpg.connect(self.server.dsn)
                try:
                    return [await connection.fetchval(sql)]
                finally:
                    connection.terminate()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return None

        [value] = await eventually(answer, within=60, every=0.05, what="the server answers")
        return value

    async def rest(self, seconds):
        """Let things go on for a while, and count connections."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.most_connections = max(self.most_connections, await self.ask(OURS))
            await self.ask("SELECT pg_sleep(0.1)")

    # faults

    async def kill_a_child(self):
        if pid := self.somebody():
            os.kill(pid, signal.SIGKILL)

    async def freeze_a_child_past_its_lease(self):
        if pid := self.somebody():
            self.frozen.add(pid)
            self.ever_frozen.add(pid)
            os.kill(pid, signal.SIGSTOP)
            await self.rest(self.dice.uniform(1.5, 2) * LEASE)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self.frozen.discard(pid)

    async def lose_a_host(self):
        """A parent and its children at once; another host comes."""
        lost = self.hosts.pop(0)
        children = self.children_of(lost)
        lost.process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.lost_hosts.append(lost)
        self.hosts.append(self.host())

    async def terminate_backends(self):
        await self.ask(KILL)

    async def cut(self):
        self.proxy.cut()

    async def refuse(self):
        self.proxy.refusing = True
        self.proxy.cut()
        await self.rest(self.dice.uniform(0.2, 1.5) * LEASE)
        self.proxy.refusing = False

    async def black_hole(self):
        self.proxy.black_hole = True
        await self.rest(self.dice.uniform(0.2, 1.2) * LEASE)
        self.proxy.black_hole = False
        # What was swallowed is never answered.
        self.proxy.cut()

    async def lose_an_answer(self):
        self.proxy.lose_answer = True
        await self.rest(0.5)
        self.proxy.lose_answer = self.proxy.refusing = False

    async def delay(self):
        self.proxy.delay = self.dice.uniform(0.05, 0.2)
        await self.rest(LEASE)
        self.proxy.delay = 0.0

    async def crash_the_server(self):
        """What an immediate restart does: all backends end at once, the postmaster recovers from the log."""
        os.kill(await self.ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"), signal.SIGKILL)


FAULTS = {
    Ground.kill_a_child: 5,
    Ground.freeze_a_child_past_its_lease: 2,
    Ground.lose_a_host: 1,
    Ground.terminate_backends: 3,
    Ground.cut: 2,
    Ground.refuse: 2,
    Ground.black_hole: 1,
    Ground.lose_an_answer: 2,
    Ground.delay: 1,
    Ground.crash_the_server: 2,
}


@pytest.fixture
def seed():
    seed = int(os.environ.get("AIOPGQ_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"AIOPGQ_CHAOS_SEED={seed}")  # noqa: T201  # pytest shows it when the test fails
    return seed


@pytest.fixture
async def server(tmp_path):
    """A server of its own: others would not like what happens to it."""
    server = await asyncio.to_thread(EmbeddedServer.start, tmp_path / "server")
    await migrate(ConnectSettings(server.dsn, "aiopgq"))
    yield server
    await asyncio.to_thread(server.close)


@pytest.fixture
def cli(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    cli = Cli(None, folder, None)
    cli.write("work", PROGRAM)
    yield cli
    cli.close()


async def enqueue(app, dice, count, ground):
    """Enqueue a mix of jobs while things break, each surely: with an id of its own, until the answer comes."""
    tasks = {}
    for name in ("quick", "work", "die"):

        @app.task(name=f"work.{name}")
        async def anything(**_arguments: object) -> None: ...

        tasks[name] = anything
    fatal = set(dice.sample(range(count), max(2, count // 100)))
    calls, ids = [], [uuid7() for _ in range(count)]
    for number, one in enumerate(ids):
        chosen = {name: task.options(id=one) for name, task in tasks.items()}
        if number in fatal:
            calls.append(chosen["die"].call(how=dice.choice(["0", "9", "crashes"])))
        elif dice.random() < 0.4:
            seconds, fails = dice.choice([0.1, 1.0, LEASE]), dice.choice([0, 0, 1])
            calls.append(chosen["work"].call(seconds=seconds, fails=fails))
        else:
            calls.append(chosen["quick"].call())

    async def accepted(batch):
        try:
            await app.enqueue_many(batch)
        except StoreError:
            return False
        return True

    for number in range(0, count, 20):
        batch = calls[number : number + 20]
        await eventually(lambda batch=batch: accepted(batch), within=60, every=0.2, what="the jobs are enqueued")
        await ground.ask("SELECT pg_sleep(0.5)")

    return ids


async def break_things(ground, faults, seed):
    for number, fault in enumerate(random.Random(seed).choices(list(FAULTS), list(FAULTS.values()), k=faults)):
        # Dice for each fault, so that what one finds does not change the next.
        ground.dice = random.Random(f"{seed} {number}")
        ground.story.append(f"{fault.__name__} at {time.monotonic() - ground.began:.1f} s")
        await fault(ground)
        await ground.rest(ground.dice.uniform(0.2, 2))


async def test_no_job_is_lost_nor_run_beside_itself_whatever_breaks(server, cli, seed):
    count = int(os.environ.get("AIOPGQ_CHAOS_JOBS", "300"))
    faults = int(os.environ.get("AIOPGQ_CHAOS_FAULTS", "14"))
    effects = await Effects.open(server.dsn)
    await effects.close()
    async with Proxy(server.dsn) as proxy:
        cli.env |= {"AIOPGQ_DSN": proxy.dsn, "EFFECTS": server.dsn}
        ground = Ground(server, proxy, cli)
        for host in ground.hosts:
            await asyncio.to_thread(host.ready)
        try:
            async with App(proxy.dsn) as app:
                ids, _ = await asyncio.gather(
                    enqueue(app, random.Random(seed), count, ground), break_things(ground, faults, seed)
                )

            async def all_ended():
                return await ground.ask(UNFINISHED) == 0

            await eventually(all_ended, within=120, every=0.3, what="all jobs have ended")
            await check(ground, ids, faults)
            for host in ground.hosts:
                host.stop()
            codes = [await asyncio.to_thread(host.end) for host in ground.hosts]
            assert codes == [0] * HOSTS
        except AssertionError as error:
            error.add_note(f"AIOPGQ_CHAOS_SEED={seed}: " + ", ".join(ground.story))
            error.add_note("".join(ground.lines[-200:]))
            raise


async def check(ground, ids, faults):
    """Every job has ended once, was never run beside itself, and little was said about it."""
    effects = await Effects.open(ground.server.dsn)
    connection = await asyncpg.connect(ground.server.dsn)
    try:
        rows = await connection.fetch("SELECT id, status, attempts, last_error FROM aiopgq.all_jobs")
        assert Counter(row["id"] for row in rows) == Counter(ids)
        assert [dict(row) for row in rows if row["status"] != "completed"] == []
        assert await violations(connection) == {}
        assert await effects.twice() == []
        assert set(await effects.attempts()) == set(ids)
        # A process that stands still cannot stop its handlers.
        overlaps = await effects.overlaps()
        assert [pair for pair in overlaps if pair[0]["pid"] not in ground.ever_frozen] == []
        assert [dict(late) for late in await connection.fetch(AFTER_THE_END)] == []
    finally:
        await effects.close()
        await connection.close()
    assert ground.most_connections <= MOST_CONNECTIONS
    assert len(ground.lines) <= len(ids) // 3 + LINES_A_FAULT * faults
    took, attempts = time.monotonic() - ground.began, Counter(row["attempts"] for row in rows)
    summary = [
        f"{len(ids)} jobs, {faults} faults in {took:.0f} s; jobs by attempts {dict(attempts)}",
        f"{len(overlaps)} overlaps, {ground.most_connections} connections, {len(ground.lines)} lines",
        *ground.story,
    ]
    print(*summary, sep="\n")  # noqa: T201  # a run's figures; -s shows them
