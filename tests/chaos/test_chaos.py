"""Many jobs, real processes, a server that is torn down under them, and dice that choose what breaks next.

`AIOPGQ_CHAOS_SEED` repeats a run's choices, `AIOPGQ_CHAOS_JOBS` sets the number of jobs, `AIOPGQ_CHAOS_FAULTS` that
of the faults.
"""

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import time
from collections import Counter

import asyncpg
import pytest
from effects import FAKE_CLOCK, PROGRAM, Effects, wrong_clock
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
# claim, settle, beside, pulse and listen for each worker process, and one for each run of a transactional task; those
# of the dead may be on their way out.
MOST_CONNECTIONS = 5 * HOSTS * CHILDREN * 3 // 2
MOST_TRANSACTIONS = SLOTS * HOSTS * CHILDREN * 3 // 2
LINES_A_FAULT = 30
HOUR = 3600
OURS = """
    SELECT array_agg(application_name = 'aiopgq transaction') FROM pg_stat_activity
    WHERE application_name LIKE 'aiopgq %'"""
# A job that was lost with its worker four times waits more than a minute for its next run, five minutes after the
# fifth: when the faults are over nobody waits for that.
UNFINISHED = """
    WITH hurried AS (
        UPDATE aiopgq.jobs SET run_at = clock_timestamp()
        WHERE status = 'pending' AND last_error = 'worker lost' AND run_at > clock_timestamp() + interval '30 s')
    SELECT count(*) FROM aiopgq.jobs"""
LEFT = """
    SELECT json_agg(json_build_array(id, task, status, attempts, last_error, run_at - clock_timestamp()))
    FROM aiopgq.jobs"""
KILL = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE application_name LIKE 'aiopgq %' AND random() < 0.5"""
AFTER_THE_END = """
    SELECT e.job, e.claim, e.began, a.finished_at FROM public.effects e JOIN aiopgq.all_jobs a ON a.id = e.job
    WHERE e.began > a.finished_at"""
# The run that began last is the one whose settlement counts: it had ended. $1: processes that stood still meanwhile,
# which may begin long after others have taken the job.
BEFORE_THE_END = """
    SELECT * FROM (
        SELECT DISTINCT ON (e.job) e.job, e.claim, e.attempt, e.pid, e.began, e.ended, a.finished_at
        FROM public.effects e JOIN aiopgq.all_jobs a ON a.id = e.job
        ORDER BY e.job, e.id DESC) AS last
    WHERE (last.ended IS NULL OR last.ended > last.finished_at) AND last.pid <> ALL ($1)"""
# Whoever runs these cannot be stopped from outside; of two runs, one settlement is accepted.
UNSTOPPABLE = {"work.block", "work.work_in_a_thread"}


class Server:
    """A PostgreSQL of its own, which may go and come back: others would not like what happens to it."""

    def __init__(self, folder):
        self._folder = folder
        self.start()

    def start(self):
        self._hold = EmbeddedServer.start(self._folder)
        self.dsn = self._hold.dsn

    def stop(self, number):
        """Send the postmaster a signal; return what tells whether it has ended."""
        file = self._folder / "data" / "postmaster.pid"
        postmaster = int(file.read_text().split()[0])
        os.kill(postmaster, number)
        self._hold.close()

        return lambda: not alive(postmaster)

    def close(self):
        self._hold.close()


class Ground:
    """The server, a network for each host, the workers, and what breaks them."""

    def __init__(self, server, networks, cli):
        self.server = server
        self.networks = networks
        self.cli = cli
        self.dice = None
        self.story = []
        self.began = time.monotonic()
        self.most_connections = self.most_transactions = 0
        self.frozen = set()
        self.ever_frozen = set()
        self.clocks = []
        self.hosts = [self.host(network) for network in networks]
        self.lost_hosts = []

    def host(self, network):
        """A host whose clock is right, one that is an hour ahead, one that is an hour behind, and so on."""
        options = ("--processes", CHILDREN, "--concurrency", SLOTS, "--no-job-log", "--poll-interval", 1)
        clock = {}
        if FAKE_CLOCK is not None:
            self.clocks.append(self.cli.folder / f"clock-{len(self.clocks)}")
            clock = wrong_clock(self.clocks[-1], (0, 1, -1)[(len(self.clocks) - 1) % 3])
        return self.cli.run("-A", "work", *options, lease=str(LEASE), AIOPGQ_DSN=network.dsn, **clock)

    def some_networks(self):
        """All of them, or that of one host: the others go on, and judge it."""
        return self.networks if self.dice.random() < 0.5 else [self.dice.choice(self.networks)]

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
            transactions = await self.ask(OURS) or []
            self.most_transactions = max(self.most_transactions, sum(transactions))
            self.most_connections = max(self.most_connections, len(transactions) - sum(transactions))
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
        self.networks.append(self.networks.pop(0))
        self.hosts.append(self.host(self.networks[-1]))

    async def terminate_backends(self):
        await self.ask(KILL)

    async def cut(self):
        for network in self.some_networks():
            network.cut()

    async def refuse(self):
        networks = self.some_networks()
        for network in networks:
            network.refusing = True
            network.cut()
        await self.rest(self.dice.uniform(0.2, 1.5) * LEASE)
        for network in networks:
            network.refusing = False

    async def black_hole(self, networks=None, least=0.2, most=1.2):
        networks = networks or self.networks
        for network in networks:
            network.black_hole = True
        await self.rest(self.dice.uniform(least, most) * LEASE)
        for network in networks:
            network.black_hole = False
            # What was swallowed is never answered.
            network.cut()

    async def isolate_a_host_past_its_lease(self):
        """Others see it silent and take its jobs; it sees nothing, and must have stopped them by then."""
        await self.black_hole([self.dice.choice(self.networks)], 1.5, 2)

    async def lose_an_answer(self):
        networks = self.some_networks()
        for network in networks:
            network.lose_answer = True
        await self.rest(0.5)
        for network in networks:
            network.lose_answer = network.refusing = False

    async def delay(self):
        networks, delay = self.some_networks(), self.dice.uniform(0.05, 0.2)
        for network in networks:
            network.delay = delay
        await self.rest(LEASE)
        for network in networks:
            network.delay = 0.0

    async def delay_some(self):
        """Some connections are slow, each in its own way, beats among them perhaps."""
        dice = random.Random(self.dice.random())
        for network in self.networks:
            network.slow(iter(lambda: dice.choice([0, dice.uniform(0.05, 0.5)]), None))
        await self.rest(LEASE)
        for network in self.networks:
            network.slow(itertools.repeat(0.0))

    async def set_a_clock_wrong(self):
        """The clock of a host steps by an hour or two; that of the database decides."""
        if self.clocks:
            self.dice.choice(self.clocks).write_text(self.dice.choice(["-1h", "+0h", "+1h"]))

    async def restart_the_server(self):
        """Stopped, mostly at once as in an emergency, and away for a while."""
        gone = self.server.stop(self.dice.choice([signal.SIGQUIT, signal.SIGQUIT, signal.SIGINT]))
        until = time.monotonic() + self.dice.uniform(0.1, 1.2) * LEASE
        await eventually(lambda: gone() and time.monotonic() > until, within=30, what="the outage is over")
        await asyncio.to_thread(self.server.start)

    async def crash_the_server(self):
        """What a crash of one backend does: all others end at once, the postmaster recovers from the log."""
        os.kill(await self.ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"), signal.SIGKILL)


FAULTS = {
    Ground.kill_a_child: 5,
    Ground.freeze_a_child_past_its_lease: 3,
    Ground.lose_a_host: 1,
    Ground.terminate_backends: 3,
    Ground.cut: 2,
    Ground.refuse: 2,
    Ground.black_hole: 1,
    Ground.isolate_a_host_past_its_lease: 2,
    Ground.lose_an_answer: 2,
    Ground.delay: 1,
    Ground.delay_some: 1,
    Ground.set_a_clock_wrong: 1,
    Ground.restart_the_server: 2,
    Ground.crash_the_server: 1,
}


@pytest.fixture
def seed():
    seed = int(os.environ.get("AIOPGQ_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"AIOPGQ_CHAOS_SEED={seed}")  # noqa: T201  # pytest shows it when the test fails
    return seed


@pytest.fixture
async def server(tmp_path):
    server = await asyncio.to_thread(Server, tmp_path / "server")
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


def chosen_calls(app, dice, count):
    """Return a mix of calls, and their ids."""
    tasks = {}
    for name in ("quick", "work", "die", "block", "work_in_a_thread", "transfer"):

        @app.task(name=f"work.{name}")
        async def anything(**_arguments: object) -> None: ...

        tasks[name] = anything
    few = max(2, count // 100)
    numbers = dice.sample(range(count), 2 * few)
    fatal, blocking = set(numbers[:few]), set(numbers[few:])
    # The longest are under way still when others have waited out a lease and taken them back.
    calls, ids = [], [uuid7() for _ in range(count)]
    for number, one in enumerate(ids):
        chosen = {name: task.options(id=one) for name, task in tasks.items()}
        kind, fails = dice.random(), dice.choice([0, 0, 1])
        seconds = dice.choice([0.1, 1.0, LEASE, 2.5 * LEASE])
        if number in fatal:
            calls.append(chosen["die"].call(how=dice.choice(["0", "9", "crashes"])))
        elif number in blocking:
            calls.append(chosen["block"].call(seconds=1.4 * LEASE))
        elif kind < 0.15:
            how = dice.choices(["commits", "fails", "dies"], [12, 4, 1])[0]
            calls.append(chosen["transfer"].call(seconds=seconds / 2, how=how))
        elif kind < 0.25:
            calls.append(chosen["work_in_a_thread"].call(seconds=seconds / 2, fails=fails))
        elif kind < 0.5:
            calls.append(chosen["work"].call(seconds=seconds, fails=fails))
        else:
            calls.append(chosen["quick"].call())

    return calls, ids


async def enqueue(app, dice, count, ground, faults):
    """Enqueue jobs while things break, each surely: with an id of its own, until the answer comes."""
    calls, ids = chosen_calls(app, dice, count)

    async def accepted(batch):
        try:
            await app.enqueue_many(batch)
        except StoreError:
            return False
        return True

    def in_step(number):
        # Whatever breaks next finds jobs under way.
        return len(ground.story) * count >= number * faults

    for number in range(0, count, 20):
        await eventually(lambda number=number: in_step(number), within=120, what="the next thing has broken")
        batch = calls[number : number + 20]
        await eventually(lambda batch=batch: accepted(batch), within=60, every=0.2, what="the jobs are enqueued")

    return ids


async def break_things(ground, faults, seed):
    dice = random.Random(seed)
    # Each kind once, if there are so many, then what the dice say.
    each = dice.sample(list(FAULTS), min(faults, len(FAULTS)))
    chosen = each + dice.choices(list(FAULTS), list(FAULTS.values()), k=faults - len(each))
    dice.shuffle(chosen)
    for number, fault in enumerate(chosen):
        # Dice for each fault, so that what one finds does not change the next.
        ground.dice = random.Random(f"{seed} {number}")
        ground.story.append(f"{fault.__name__} at {time.monotonic() - ground.began:.1f} s")
        await fault(ground)
        await ground.rest(ground.dice.uniform(0.2, 2))


async def test_no_job_is_lost_nor_run_beside_itself_whatever_breaks(server, cli, seed):
    count = int(os.environ.get("AIOPGQ_CHAOS_JOBS", "500"))
    faults = int(os.environ.get("AIOPGQ_CHAOS_FAULTS", "18"))
    effects = await Effects.open(server.dsn)
    await effects.close()
    async with contextlib.AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(Proxy(server.dsn)) for _ in range(HOSTS)]
        cli.env["EFFECTS"] = server.dsn
        ground = Ground(server, networks, cli)
        for host in ground.hosts:
            await asyncio.to_thread(host.ready)
        try:
            async with App(networks[0].dsn) as app:
                ids, _ = await asyncio.gather(
                    enqueue(app, random.Random(seed), count, ground, faults), break_things(ground, faults, seed)
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
            error.add_note(f"unfinished: {await ground.ask(LEFT)}")
            error.add_note("".join(ground.lines[-200:]))
            raise


@pytest.mark.skipif(FAKE_CLOCK is None, reason="no libfaketime: apt-get install -y --no-install-recommends libfaketime")
@pytest.mark.parametrize("hours", [-1, 1])
async def test_the_clock_of_the_database_decides_what_is_due_not_that_of_a_worker(server, cli, hours):
    effects = await Effects.open(server.dsn)
    cli.env |= {"AIOPGQ_DSN": server.dsn, "EFFECTS": server.dsn}
    host = cli.run("-A", "work", lease=str(LEASE), **wrong_clock(cli.folder / "clock", hours))
    await asyncio.to_thread(host.ready)
    [soon, later, again] = [uuid7() for _ in range(3)]
    async with App(server.dsn) as app:

        @app.task(name="work.come_back")
        async def come_back(fails: int) -> None: ...

        await app.enqueue_many(
            [
                come_back.options(id=soon, delay=1).call(0),
                come_back.options(id=later, delay=HOUR / 2).call(0),
                come_back.options(id=again).call(1),
            ]
        )
        for one in (soon, again):
            await come_back.handle(one).result(30)
        waiting = await come_back.handle(later).info()
        second = await come_back.handle(again).info()
    runs = await effects.runs()
    await effects.close()
    host.stop()
    assert await asyncio.to_thread(host.end) == 0

    assert waiting.status == "pending"
    assert [run["job"] for run in runs if run["job"] == later] == []
    assert all(abs(run["host_clock"] - run["began"].timestamp() - hours * HOUR) < 60 for run in runs)
    first, other = [run["began"] for run in runs if run["job"] == again]
    # Its backoff of two seconds is neither an hour too long nor over at once.
    assert (other - first).total_seconds() >= 2
    assert second.attempts == 2


async def check(ground, ids, faults):
    """Every job has ended once, was never run beside itself, and little was said about it."""
    effects = await Effects.open(ground.server.dsn)
    connection = await asyncpg.connect(ground.server.dsn)
    try:
        rows = await connection.fetch("SELECT id, task, status, attempts, last_error FROM aiopgq.all_jobs")
        assert Counter(row["id"] for row in rows) == Counter(ids)
        assert [dict(row) for row in rows if row["status"] != "completed"] == []
        assert await violations(connection) == {}
        assert await effects.twice() == []
        assert set(await effects.attempts()) == set(ids)
        # What is written with its settlement is there once for each job, however often it was run.
        tasks = {row["id"]: row["task"] for row in rows}
        assert await effects.ledger() == Counter(one for one, task in tasks.items() if task == "work.transfer")
        # A process that stands still cannot stop its handlers, nor can a loop that is blocked, nor a thread be stopped.
        overlaps = await effects.overlaps()
        unnamed = [
            pair
            for pair in overlaps
            if pair[0]["pid"] not in ground.ever_frozen and tasks[pair[0]["job"]] not in UNSTOPPABLE
        ]
        assert unnamed == []
        assert [dict(late) for late in await connection.fetch(AFTER_THE_END)] == []
        assert [dict(early) for early in await connection.fetch(BEFORE_THE_END, ground.ever_frozen)] == []
        wrong = [run for run in await effects.runs() if abs(run["host_clock"] - run["began"].timestamp()) > HOUR - 60]
        assert bool(wrong) == (FAKE_CLOCK is not None)
    finally:
        await effects.close()
        await connection.close()
    assert ground.most_connections <= MOST_CONNECTIONS
    assert ground.most_transactions <= MOST_TRANSACTIONS
    assert len(ground.lines) <= len(ids) // 3 + LINES_A_FAULT * faults
    took, attempts = time.monotonic() - ground.began, Counter(row["attempts"] for row in rows)
    summary = [
        f"{len(ids)} jobs, {faults} faults in {took:.0f} s; jobs by attempts {dict(attempts)}",
        f"{ground.most_connections} connections and {ground.most_transactions} of transactions at most",
        f"{len(overlaps)} overlaps, {len(ground.lines)} lines, {len(wrong)} runs under a wrong clock",
        *ground.story,
    ]
    print(*summary, sep="\n")  # noqa: T201  # a run's figures; -s shows them
