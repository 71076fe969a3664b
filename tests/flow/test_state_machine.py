"""The states of a job: a random program over the real statements, and a model that knows what must come of each."""

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from invariants import LAWS

from aiopgq._store.connection import ConnectSettings, Line
from aiopgq._store.jobs import EARLIEST, Jobs, complete_foreign
from aiopgq._store.limits import Limits
from aiopgq._store.statements import statement
from aiopgq._store.workers import Workers
from aiopgq._words.clock import uuid7
from aiopgq._words.job import Mark, NewJob, Settlement, WorkerIdentity
from aiopgq._words.limit import Rule
from aiopgq._words.unique import Standing, UniqueKey

QUEUES = ("a", "b")
TASKS = ("known", "new")
FAR = 3600.0
KEYS = ("x", "y", "z")
SEEN = """
    SELECT a.id, a.status, a.attempts, a.held, a.cancel_requested, coalesce(jsonb_array_length(a.errors), 0) AS errors,
        j.place IS NOT NULL AS in_line, j.claim_id, j.worker_id, j.unique_key
    FROM aiopgq.all_jobs a LEFT JOIN aiopgq.jobs j ON j.id = a.id"""
TIME_PASSES = """
    UPDATE aiopgq.jobs SET run_at = clock_timestamp() - interval '1 second'
    WHERE status = 'pending' AND place IS NULL AND id = ANY ($1)"""
SOON = """
    SELECT count(*) FROM aiopgq.jobs WHERE id = ANY ($1)
      AND run_at < clock_timestamp() + 1.2 * power(4, attempts - 1) * interval '1 second' AND place IS NULL"""
LATER = "UPDATE aiopgq.jobs SET run_at = run_at + interval '1 hour' WHERE id = ANY ($1)"
NOTHING = """
    TRUNCATE aiopgq.jobs, aiopgq.archive, aiopgq.dead_letters, aiopgq.workers, aiopgq.unique_holds,
        aiopgq.paused_tasks"""
PERIOD_ENDS = "UPDATE aiopgq.unique_holds SET until = clock_timestamp() WHERE unique_key = $1 AND task = $2"
LIMIT, AT_ONCE = "limit", 2
OUTSIDE = "SELECT id, held, place IS NOT NULL AS in_line FROM aiopgq.jobs WHERE id = ANY ($1) AND status = 'pending'"
NUMBERS = """
    SELECT id, order_key, order_no FROM aiopgq.jobs WHERE order_key IS NOT NULL
    UNION ALL SELECT id, order_key, order_no FROM aiopgq.dead_letters WHERE order_key IS NOT NULL"""
# What holds of limits and order after each step: nobody is one too many, and nobody waits for nothing.
GATE_LAWS = {
    "the limit is not declared": "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM aiopgq.limits WHERE name = 'limit')",
    # After it was lowered those that have begun are too many until they end.
    "a job is in line although its key has no room": """
        SELECT j.limit_key, count(*) FROM aiopgq.jobs j
        WHERE j.limit_key IS NOT NULL AND j.held IS NULL AND j.place IS NOT NULL
        GROUP BY j.limit_key
        HAVING count(*) > (SELECT l.running FROM aiopgq.limits l) AND bool_or(j.status = 'pending')""",
    "a job waits for its limit although its key has room": """
        SELECT j.id, j.limit_key FROM aiopgq.jobs j, aiopgq.limits l WHERE j.held = 'limit' AND l.running > (
            SELECT count(*) FROM aiopgq.jobs i
            WHERE i.limit_key = j.limit_key AND i.held IS NULL AND i.place IS NOT NULL)""",
    "two jobs of an order have their turn": """
        SELECT j.order_key, count(*) FROM aiopgq.jobs j
        WHERE j.order_key IS NOT NULL AND coalesce(j.held, '') NOT IN ('order', 'new order')
        GROUP BY j.order_key HAVING count(*) > 1""",
    "a job waits for its turn although nobody has it": """
        SELECT j.id, j.order_key FROM aiopgq.jobs j
        WHERE j.held = 'order' AND NOT EXISTS (
            SELECT 1 FROM aiopgq.jobs i
            WHERE i.order_key = j.order_key AND coalesce(i.held, '') NOT IN ('order', 'new order'))
          AND NOT EXISTS (
            SELECT 1 FROM aiopgq.dead_letters d
            WHERE d.order_key = j.order_key AND d.order_blocks AND d.order_no < j.order_no)""",
}
LINE = "SELECT id, queue, priority, place FROM aiopgq.jobs WHERE id = ANY ($1)"


@dataclass
class Expected:
    """What the model knows of a job."""

    queue: str
    priority: int
    task: str
    max_attempts: int
    status: str = "pending"
    attempts: int = 0
    errors: int = 0
    in_line: bool = True
    held: str | None = None
    cancel_requested: bool = False
    claim_id: UUID | None = None
    worker_id: UUID | None = None
    restrained: bool = False
    key: str | None = None
    period: float | None = None
    # A held job that was postponed; it leaves the line when it is freed.
    postponed: bool = False
    # When it became a dead letter, among all that did.
    failed: int = 0

    @property
    def finished(self):
        return self.status in ("completed", "failed", "cancelled")

    def leave(self, status):
        """End in the archive or among the dead letters."""
        self.status = status
        self.postponed = False
        self.in_line, self.cancel_requested, self.held = False, False, None
        self.claim_id = self.worker_id = None

    def seen(self):
        """Return what the tables must show of it."""
        return {
            "status": self.status,
            "attempts": self.attempts,
            "held": self.held,
            "cancel_requested": self.cancel_requested,
            "errors": self.errors,
            "in_line": self.in_line,
            "claim_id": self.claim_id,
            "worker_id": self.worker_id,
            "unique_key": None if self.finished else self.key,
        }


def is_restrained(new):
    return new.limit_key is not None or new.order_key is not None


@dataclass
class World:
    """Three fake workers that live, others that are dead, a database, and the model."""

    jobs: Jobs
    store: Workers
    sql: asyncpg.Connection
    dice: random.Random
    # How often each living one has beaten.
    beats: dict[UUID, int] = field(default_factory=dict)
    # The parent and the pid of every one that ever was.
    processes: dict[UUID, tuple[UUID, int]] = field(default_factory=dict)
    model: dict[UUID, Expected] = field(default_factory=dict)
    # Every row a claim ever gave, whoever holds the job now.
    claims: list = field(default_factory=list)
    # Who made each claim.
    claimers: dict[UUID, UUID] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    # The completed jobs that hold a key of a task.
    holds: dict[tuple[str, str], UUID] = field(default_factory=dict)
    numbers: itertools.count = field(default_factory=itertools.count)
    # The same dice tell the same story: the places of jobs may go by their ids.
    ids: itertools.count = field(default_factory=lambda: itertools.count(1))
    # The order key and the number of each job that has one, as last seen.
    orders: dict[UUID, tuple[str, int]] = field(default_factory=dict)

    def keyed_by(self, key, task):
        """Return the unfinished job that has a key."""
        for one, job in self.model.items():
            if job.key == key is not None and job.task == task and not job.finished:
                return one
        return None

    def complete_one(self, one):
        job = self.model[one]
        job.leave("completed")
        if job.period is not None:
            self.holds[job.key, job.task] = one

    def bury_one(self, one):
        self.model[one].leave("failed")
        self.model[one].failed = next(self.numbers)

    def tell(self, line):
        self.story.append(line)

    def some_ids(self, most=4):
        known = list(self.model)
        return self.dice.sample(known, min(len(known), self.dice.randint(1, most)))

    def some_claims(self, most=5):
        """Return claims of different jobs, mostly current ones, some stale."""
        current = [one for one in self.claims if self.model[one.id].claim_id == one.claim_id]
        stale = [one for one in self.claims if self.model[one.id].claim_id != one.claim_id]
        chosen = {}
        for one in self.dice.sample(current, min(len(current), most)) + self.dice.sample(stale, min(len(stale), 1)):
            chosen.setdefault(one.id, one)
        batch = list(chosen.values())
        self.dice.shuffle(batch)
        return batch

    def is_current(self, claim):
        return self.model[claim.id].claim_id == claim.claim_id

    async def begin(self):
        """Start with workers that have declared the limit, and a few jobs."""
        await self.limit_to(AT_ONCE)
        await self.populate()
        await self.enqueue()

    async def limit_to(self, running):
        await Limits(self.jobs.line).declare({LIMIT: Rule(running, None, None, None)}, [])

    # steps

    async def enqueue(self):
        batch = []
        for _ in range(self.dice.randint(1, 5)):
            new = self.new_job()
            batch.append(new)
            self.model[new.id] = Expected(
                new.queue, new.priority, new.task, new.max_attempts, in_line=new.delay is None
            )
            self.model[new.id].restrained = is_restrained(new)
        assert await self.jobs.enqueue(batch) == [Standing(new.id, "new") for new in batch]

    def new_job(self, job_id=None):
        task = self.dice.choices(TASKS, [4, 1])[0]
        return NewJob(
            id=job_id or UUID(int=next(self.ids)),
            queue=self.dice.choice(QUEUES),
            task=task,
            limit_key=self.dice.choice([None, None, "limit/1", "limit/2"]) if task == "known" else None,
            order_key=self.dice.choice([None, None, "order/1", "order/2"]) if task == "known" else None,
            order_blocks=self.dice.random() < 0.5,
            args="{}",
            priority=self.dice.choice([30, 100, 150]),
            delay=self.dice.choice([None, None, FAR]),
            run_at=None,
            max_attempts=self.dice.randint(1, 4),
            timeout=None,
            headers=None,
        )

    async def enqueue_again(self):
        """Repeat ids that are known already, wherever their jobs are."""
        again = [self.new_job(one) for one in self.some_ids()]
        assert await self.jobs.enqueue(again, once=True) == [Standing(new.id, "known") for new in again]

    async def enqueue_unique(self):
        """Enqueue a batch of which most have keys, some the same."""
        batch = []
        for _ in range(self.dice.randint(1, 4)):
            new = self.new_job()
            if self.dice.random() < 0.8:
                on_conflict = self.dice.choice(["skip", "replace", "debounce"])
                new.unique = UniqueKey(self.dice.choice(KEYS), on_conflict, self.dice.choice([None, FAR]), None)
            batch.append(new)
        expected = {}
        # In the order in which keys are written.
        for new in sorted(batch, key=lambda new: (new.unique.key if new.unique else "", new.task)):
            expected[new.id] = self.expect_unique(new)
        answers = await self.jobs.enqueue_unique(batch)
        assert {new.id: answer for new, answer in zip(batch, answers, strict=True)} == expected
        self.tell("/".join(answer.verdict for answer in answers))
        # A producer lets nobody in; the next worker that looks does.
        await self.jobs.promote(EARLIEST, 1000, TASKS)

    def expect_unique(self, new):
        """Let the model enqueue a job under its key."""
        unique = new.unique
        if unique is not None:
            held = self.holds.get((unique.key, new.task))
            one = held or self.keyed_by(unique.key, new.task)
            if one is not None:
                job = self.model.get(one)
                if held or unique.on_conflict == "skip" or job.status != "pending":
                    return Standing(one, "existing")
                if unique.on_conflict == "replace" and self.orders.get(one, (None,))[0] != new.order_key:
                    # At the end of another order it has another number; else it never has.
                    self.orders.pop(one, None)
                later = new.delay is not None
                job.restrained = job.restrained or (unique.on_conflict == "replace" and is_restrained(new))
                if unique.on_conflict == "replace":
                    job.attempts = 0
                if job.held is not None:
                    job.in_line = job.in_line and not later
                    job.postponed = later or (job.postponed and unique.on_conflict == "debounce")
                else:
                    job.in_line = not later and (job.in_line or unique.on_conflict == "replace")
                return Standing(one, "replaced" if unique.on_conflict == "replace" else "debounced")
        self.model[new.id] = Expected(
            new.queue, new.priority, new.task, new.max_attempts, in_line=new.delay is None,
            key=unique and unique.key, period=unique and unique.period, restrained=is_restrained(new),
        )  # fmt: skip
        return Standing(new.id, "new")

    async def let_periods_end(self):
        for key, task in list(self.holds):
            if self.dice.random() < 0.5:
                await self.sql.execute(PERIOD_ENDS, key, task)
                del self.holds[key, task]
        await self.jobs.prune_holds(self.dice.choice([1, 1000]))

    async def claim(self):
        worker, claim_id = self.some_worker(), uuid4()
        tasks = list(TASKS[: self.dice.choice([1, 2])])
        slots = {queue: self.dice.randint(1, 3) for queue in self.dice.sample(QUEUES, self.dice.randint(1, 2))}
        ready = defaultdict(list)
        rows = await self.sql.fetch(LINE, [one for one, job in self.model.items() if self.is_ready(job, tasks)])
        for row in sorted(rows, key=lambda row: (-row["priority"], row["place"])):
            ready[row["queue"]].append(row["id"])
        expected = {one for queue, free in slots.items() for one in ready[queue][:free]}

        taken = await self.jobs.claim(worker, claim_id, sum(slots.values()), tasks, slots, None)

        assert {one.id for one in taken} == expected
        for one in taken:
            job = self.model[one.id]
            job.status, job.claim_id, job.worker_id = "claimed", claim_id, worker
            job.attempts += 1
            assert one.attempts == job.attempts
        self.claims += sorted(taken, key=lambda one: one.place)
        self.claimers[claim_id] = worker
        self.tell(f"claimed {len(taken)}")

    async def claim_again(self):
        """Read again what a claim took whose answer was lost, if anything: as much of it as is still its own."""
        for claim_id in self.dice.sample(list(self.claimers), min(len(self.claimers), 3)):
            worker = self.claimers[claim_id]
            rows = await self.jobs.reclaim(worker, claim_id)
            ours = {one: job.attempts for one, job in self.model.items() if job.claim_id == claim_id}
            assert {one.id: one.attempts for one in rows} == ours
        assert await self.jobs.reclaim(self.some_worker(), uuid4()) == []

    @staticmethod
    def is_ready(job, tasks):
        return job.status == "pending" and job.in_line and job.held is None and job.task in tasks

    async def complete(self):
        batch = [Settlement(one, "completed", result="1") for one in self.some_claims()]
        await self.settled("completed", batch)
        for one in batch:
            if self.is_current(one.job):
                self.complete_one(one.job.id)

    async def cancel_as_worker(self):
        batch = [Settlement(one, "cancelled", reason="why") for one in self.some_claims(2)]
        await self.settled("cancelled", batch)
        for one in batch:
            if self.is_current(one.job):
                self.model[one.job.id].leave("cancelled")

    async def fail(self):
        batch = [Settlement(one, "failed", reason="why", error='{"attempt": 1}') for one in self.some_claims(2)]
        await self.settled("failed", batch)
        for one in batch:
            if self.is_current(one.job):
                self.model[one.job.id].errors += 1
        # One statement buries them all.
        for one in batch:
            if self.is_current(one.job):
                self.bury_one(one.job.id)

    async def put_back(self):
        """Retry, snooze and release, in one batch."""
        batch = []
        for one in self.some_claims():
            delay = self.dice.choice([0.0, FAR])
            if self.dice.random() < 0.5:
                untouched = self.dice.random() < 0.5
                batch.append(Settlement(one, "pending", delay=delay, refund=True, untouched=untouched))
            elif one.attempts < one.max_attempts:
                batch.append(Settlement(one, "pending", reason="why", error='{"attempt": 1}', delay=delay))
        await self.settled("pending", batch)
        for one in batch:
            self.back_in_line(one)

    def back_in_line(self, settlement):
        job = self.model[settlement.job.id]
        if not self.is_current(settlement.job):
            return
        if job.cancel_requested:
            job.leave("cancelled")
            return
        in_line = settlement.untouched or settlement.delay == 0
        job.status, job.claim_id, job.worker_id, job.in_line = "pending", None, None, in_line
        job.attempts -= settlement.refund
        job.errors += settlement.error is not None

    async def settled(self, kind, batch):
        ours = {one.job.id for one in batch if self.is_current(one.job)}
        assert await self.jobs.settle(kind, batch, keep=True) == ours
        if self.dice.random() < 0.3:
            # As whoever does not know whether it was committed.
            assert await self.jobs.settle(kind, batch, keep=True) == set()
        self.tell(f"{kind}: {len(ours)} of {len(batch)}")

    async def settle_within(self):
        """A transactional run completes its job in its own transaction, which is lost perhaps at its COMMIT."""
        for one in self.some_claims(2):
            ours = self.is_current(one)
            # Whoever lost the connection does not know; nobody asks before the transaction has ended.
            transaction, committed = self.sql.transaction(), self.dice.random() < 0.6
            await transaction.start()
            assert await self.sql.fetchval(statement("begin_run", "aiopgq"), one.id, one.claim_id) == ours
            assert await complete_foreign(self.sql, "aiopgq", one, "1", keep=True) == ours
            await (transaction.commit() if committed else transaction.rollback())
            if committed and ours:
                self.complete_one(one.id)
            assert await self.jobs.still_claimed(one, terminate=True) == (ours and not committed)
            # Such a transaction lets nobody in; the worker does so after it.
            await Limits(self.jobs.line).let_in_stranded()

    async def mark(self):
        batch = self.some_claims()
        marks = [Mark(one.id, one.claim_id, 1.0, 50.0, "half", 1) for one in batch]
        ours = {one.id: self.model[one.id].cancel_requested for one in batch if self.is_current(one)}
        assert await self.jobs.mark(marks) == ours
        for one in ours:
            self.model[one].status = "running"

    async def cancel(self):
        """Cancel from outside."""
        for one in [*self.some_ids(2), uuid4()]:
            job = self.model.get(one)
            answer = await self.jobs.cancel(one)
            if job is None:
                assert answer == "not found"
            elif job.status == "pending":
                assert answer == "cancelled"
                job.leave("cancelled")
            elif job.status in ("claimed", "running"):
                assert answer == "requested"
                job.cancel_requested = True
            else:
                assert answer == "finished"

    async def replay(self):
        ids = self.some_ids(6)
        dead = {one for one in ids if self.model[one].status == "failed"}
        found = await self.jobs.replay(ids + ids)
        assert set(found) == dead
        for one in sorted(dead, key=lambda one: self.model[one].failed):
            job = self.model[one]
            by = self.keyed_by(job.key, job.task)
            assert found[one] == by
            if by is None:
                job.status, job.attempts, job.in_line = "pending", 0, True

    async def purge(self):
        ids = self.some_ids(1)
        dead = {one for one in ids if self.model[one].status == "failed"}
        assert set(await self.jobs.purge(ids)) == dead
        for one in dead:
            del self.model[one]
            self.claims = [claim for claim in self.claims if claim.id != one]

    async def promote(self):
        """Let time pass for some, then give them their places."""
        due = {one for one in self.some_ids(8) if self.model[one].status == "pending" and not self.model[one].in_line}
        await self.sql.execute(TIME_PASSES, due)
        free = {one for one in due if self.model[one].held is None}
        promotion = await self.jobs.promote(EARLIEST, 1000, TASKS)
        # More, if there were jobs outside.
        assert promotion.promoted >= len(free)
        for one in due:
            self.model[one].in_line = one in free
            self.model[one].postponed = False
        await self.look_outside()
        waits = [job for job in self.model.values() if self.is_waiting(job)]
        assert (promotion.next_in is not None) == bool(waits)

    @staticmethod
    def is_waiting(job):
        return job.status == "pending" and not job.in_line and job.held is None

    async def hold_unknown(self):
        unknown = [job for job in self.model.values() if self.is_ready(job, ["new"])]
        assert await self.jobs.hold_unknown(["new"], 1000) == len(unknown)
        for job in unknown:
            job.held = "unknown task"

    async def free_known(self):
        held = [job for job in self.model.values() if job.held == "unknown task"]
        assert await self.jobs.free_known(["new"], 1000) == len(held)
        for job in held:
            job.held, job.in_line, job.postponed = None, not job.postponed, False

    async def change_limit(self):
        """Another version of the program declares another limit."""
        await self.limit_to(self.dice.randint(1, 3))

    async def pause(self):
        """Pause a task; its jobs leave the line until the pause ends, and nobody claims one meanwhile."""
        limits = Limits(self.jobs.line)
        await self.look_outside()
        known = [job for job in self.model.values() if job.task == "known" and job.status == "pending"]
        ready = [job for job in known if (job.in_line and job.held is None) or job.held in ("limit", "new limit")]
        assert await limits.pause_task("known")
        assert await limits.hold_paused(1000) == len(ready)
        assert await limits.free_resumed(1000) == 0
        # None of them stands where it could be let in.
        assert await limits.let_in_stranded() == 0
        assert await self.jobs.claim(self.some_worker(), uuid4(), 9, ["known"], dict.fromkeys(QUEUES, 9), None) == []
        assert await limits.resume_task("known")
        assert await limits.free_resumed(1000) == len(ready)
        await self.jobs.promote(EARLIEST, 1000, TASKS)

    # workers

    def some_worker(self):
        """Return a worker, mostly a living one: what the dead have sent may arrive late."""
        return self.dice.choice(list(self.beats if self.dice.random() < 0.8 else self.processes))

    async def populate(self):
        """Register workers until three live; some are children of one process, one after the other."""
        while len(self.beats) < 3:
            process = (uuid4(), self.dice.randint(1, 9))
            if self.processes and self.dice.random() < 0.3:
                process = self.dice.choice(list(self.processes.values()))
            await self.register(process)

    async def register(self, process):
        worker = uuid4()
        await self.store.register(
            WorkerIdentity(worker, "w", "h", process[1], "0", process[0]), QUEUES, TASKS, 5, 60.0, []
        )
        self.beats[worker], self.processes[worker] = 0, process

    async def beat(self):
        worker = self.some_worker()
        beat = await self.store.heartbeat(worker, draining=False)
        lives = worker in self.beats
        wanted = {one for one, job in self.model.items() if job.worker_id == worker and job.cancel_requested}
        assert (beat.alive, beat.fleet, set(beat.cancelled)) == (lives, len(self.beats), wanted)
        if lives:
            self.beats[worker] += 1

    async def taken_back(self, workers):
        """Expect that the jobs of workers go back; return how many."""
        taken = {one: job for one, job in self.model.items() if job.worker_id in workers}
        for job in taken.values():
            if job.cancel_requested:
                job.leave("cancelled")
                continue
            job.errors += 1
            if job.attempts >= job.max_attempts:
                job.leave("failed")
                job.failed = next(self.numbers)
            else:
                job.status, job.claim_id, job.worker_id, job.in_line = "pending", None, None, False
        # Their backoff is short; when they come due is up to the story.
        waiting = [one for one, job in taken.items() if job.status == "pending"]
        assert await self.sql.fetchval(SOON, waiting) == len(waiting)
        await self.sql.execute(LATER, waiting)
        self.tell(f"{len(taken)} jobs taken back")
        return len(taken)

    async def lease_end(self):
        """A worker finds its lease over: it beats no more, comes back as another, and releases what it still owns."""
        worker = self.dice.choice(list(self.beats))
        claims = {one.id: one for one in self.claims if self.claimers[one.claim_id] == worker}.values()
        batch = [Settlement(one, "pending", refund=True) for one in claims]
        await self.register(self.processes[worker])
        await self.settled("pending", batch)
        for one in batch:
            self.back_in_line(one)
        if self.dice.random() < 0.5:
            await self.store.retire(worker)
            del self.beats[worker]
        assert [job for job in self.model.values() if job.worker_id == worker] == []

    async def rescue(self):
        """The beat of a worker was seen to stand still, mostly; it may have beaten since, or be dead."""
        worker = self.some_worker()
        seen = self.beats.get(worker, 0) - (self.dice.random() < 0.3)
        taken = await self.store.rescue(worker, seen, keep=True)
        if self.beats.get(worker) != seen:
            assert taken is None
            return
        del self.beats[worker]
        assert taken == await self.taken_back([worker])
        await self.populate()

    async def bury(self):
        """A parent saw a child end, with all incarnations that it was."""
        parent, pid = self.processes[self.some_worker()]
        assert await self.store.bury(uuid4(), pid, keep=True) == 0
        assert await self.store.bury(parent, pid + 1, keep=True) == 0
        dead = [worker for worker in self.beats if self.processes[worker] == (parent, pid)]
        for worker in dead:
            del self.beats[worker]
        taken = await self.store.bury(parent, pid, keep=True)
        assert taken == await self.taken_back(dead)
        await self.populate()

    async def retire(self):
        worker = self.some_worker()
        await self.store.retire(worker)
        self.beats.pop(worker, None)
        await self.populate()

    async def rescue_orphans(self):
        """Claims that were committed after their worker was given up."""
        taken = await self.store.rescue_orphans(keep=True)
        assert taken == await self.taken_back(self.processes.keys() - self.beats.keys())

    async def look_outside(self):
        """Which of the jobs with a limit or an order are in line is not foretold; laws say what may be."""
        restrained = [one for one, job in self.model.items() if job.restrained]
        for row in await self.sql.fetch(OUTSIDE, restrained):
            assert row["held"] in (None, "limit", "order", "new limit", "new order")
            self.model[row["id"]].held, self.model[row["id"]].in_line = row["held"], row["in_line"]

    async def check(self):
        """The tables show what the model says, each job once."""
        await self.look_outside()
        for law, broken in GATE_LAWS.items():
            assert (law, await self.sql.fetch(broken)) == (law, [])
        for one, key, number in await self.sql.fetch(NUMBERS):
            assert self.orders.setdefault(one, (key, number)) == (key, number)
        rows = await self.sql.fetch(SEEN)
        assert Counter(row["id"] for row in rows) == Counter(self.model.keys())
        shown = {row["id"]: {key: value for key, value in row.items() if key != "id"} for row in rows}
        assert shown == {one: job.seen() for one, job in self.model.items()}


STEPS = {
    World.enqueue: 4,
    World.enqueue_again: 1,
    World.enqueue_unique: 4,
    World.let_periods_end: 1,
    World.claim: 6,
    World.claim_again: 1,
    World.complete: 2,
    World.cancel_as_worker: 1,
    World.fail: 2,
    World.put_back: 3,
    World.settle_within: 1,
    World.mark: 1,
    World.cancel: 2,
    World.replay: 2,
    World.purge: 1,
    World.promote: 2,
    World.hold_unknown: 1,
    World.free_known: 1,
    World.change_limit: 1,
    World.pause: 1,
    World.beat: 2,
    World.lease_end: 1,
    World.rescue: 1,
    World.bury: 1,
    World.retire: 1,
    World.rescue_orphans: 1,
}


@pytest.fixture
async def line(dsn):
    line = Line(ConnectSettings(dsn, "aiopgq"), "test")
    yield line
    await line.close()


@pytest.fixture
async def sql(dsn):
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def registered(line, count=3):
    workers = [uuid4() for _ in range(count)]
    for worker in workers:
        await Workers(line).register(WorkerIdentity(worker, "w", "h", 1, "0"), QUEUES, TASKS, 5, 60.0, [])
    return workers


class Tables(RuleBasedStateMachine):
    """Any step after any other; hypothesis looks for the shortest story that goes wrong."""

    dsn = None

    def __init__(self):
        super().__init__()
        loop = asyncio.new_event_loop()
        self.do, self.close = loop.run_until_complete, loop.close
        self.line = Line(ConnectSettings(self.dsn, "aiopgq"), "test")
        self.sql = self.do(asyncpg.connect(self.dsn))
        self.do(self.sql.execute(NOTHING))
        self.world = World(Jobs(self.line), Workers(self.line), self.sql, None)

    @initialize(dice=st.randoms(use_true_random=False))
    def begin(self, dice):
        self.world.dice = dice
        self.do(self.world.begin())

    @invariant()
    def shows_what_the_model_says(self):
        self.do(self.world.check())

    def teardown(self):
        async def end():
            if self.world.dice is not None:
                await self.world.rescue_orphans()
                assert [law for law, rows in LAWS.items() if await self.sql.fetch(rows)] == []
            await self.line.close()
            await self.sql.close()

        self.do(end())
        self.close()


def as_rule(step):
    def take(self, dice):
        self.world.dice = dice
        if not self.world.model:
            self.do(self.world.enqueue())
        self.do(step(self.world))

    take.__name__ = step.__name__
    return rule(dice=st.randoms(use_true_random=False))(take)


@pytest.mark.timeout(600)  # of which hypothesis takes five minutes to shorten a story that goes wrong
def test_no_order_of_the_steps_leads_to_a_state_that_the_model_does_not_know(dsn):
    given = {"dsn": dsn} | {step.__name__: as_rule(step) for step in STEPS}
    run_state_machine_as_test(
        type("Tables", (Tables,), given),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_the_tables_follow_the_model_step_by_step(line, sql, seed):
    dice = random.Random(seed)
    world = World(Jobs(line), Workers(line), sql, dice)
    await world.begin()
    steps = Counter()
    for step in dice.choices(list(STEPS), list(STEPS.values()), k=400):
        if not world.model:
            await world.enqueue()
        world.tell(step.__name__)
        steps[step] += 1
        try:
            await step(world)
            await world.check()
        except AssertionError as error:
            error.add_note("the story: " + ", ".join(world.story[-20:]))
            raise

    await world.rescue_orphans()
    await world.check()
    assert set(steps) == set(STEPS)
    assert {job.status for job in world.model.values()} >= {"completed", "failed", "cancelled", "pending"}
    assert [law for law, rows in LAWS.items() if await sql.fetch(rows)] == []


class FakeWorker:
    """Claims, settles one way or another, forgets, and tries stale claims; beside others that do the same."""

    def __init__(self, jobs, worker, seed, holders):
        self._jobs = jobs
        self._worker = worker
        self._dice = random.Random(seed)
        self._holders = holders
        self._mine = []
        self._stale = []
        self.ended = Counter()

    async def work(self, rounds):
        for _ in range(rounds):
            await self.claim()
            await self.settle()
            await self.try_stale()
        while self._mine:
            await self.settle()

    async def claim(self):
        claim_id = uuid4()
        free = self._dice.randint(1, 5)
        slots = {"a": free, "b": free}
        for one in await self._jobs.claim(self._worker, claim_id, free, list(TASKS), slots, None):
            # Nobody else holds it at this moment.
            assert self._holders.setdefault(one.id, self) is self
            assert one.attempts <= one.max_attempts
            self._mine.append(one)

    async def settle(self):
        self._dice.shuffle(self._mine)
        count = self._dice.randint(0, len(self._mine))
        batch, self._mine = self._mine[:count], self._mine[count:]
        kind = self._dice.choice(["completed", "failed", "pending", "pending"])
        refund = self._dice.random() < 0.5
        if kind == "pending" and not refund:
            self._mine += [one for one in batch if one.attempts == one.max_attempts]
            batch = [one for one in batch if one.attempts < one.max_attempts]
        if not batch:
            return
        for one in batch:
            assert self._holders.pop(one.id) is self
        settlements = [Settlement(one, kind, reason="why", error="{}", refund=refund) for one in batch]
        assert await self._jobs.settle(kind, settlements, keep=True) == {one.id for one in batch}
        if kind != "pending":
            self.ended.update(one.id for one in batch)
        self._stale += batch

    async def try_stale(self):
        """A claim that was settled changes nothing, whoever has the job now."""
        if self._stale:
            batch = {one.id: one for one in self._dice.choices(self._stale, k=3)}.values()
            kind = self._dice.choice(["completed", "failed", "pending", "cancelled"])
            settlements = [Settlement(one, kind, reason="stale", error="{}") for one in batch]
            assert await self._jobs.settle(kind, settlements, keep=True) == set()
            assert await self._jobs.mark([Mark(one.id, one.claim_id, 1.0, 1.0, "stale", 1) for one in batch]) == {}


async def test_workers_beside_each_other_never_hold_a_job_together_nor_lose_one(dsn, sql):
    lines = [Line(ConnectSettings(dsn, "aiopgq"), "test") for _ in range(3)]
    stores = [Jobs(line) for line in lines]
    ids = await registered(lines[0])
    holders = {}
    workers = [FakeWorker(store, one, seed, holders) for seed, (store, one) in enumerate(zip(stores, ids, strict=True))]
    made = itertools.count()
    batch = [NewJob(uuid7(), QUEUES[next(made) % 2], "known", "{}", 100, None, None, 5, None, None) for _ in range(300)]
    try:
        await stores[0].enqueue(batch)
        await asyncio.gather(*(worker.work(60) for worker in workers))
    finally:
        for line in lines:
            await line.close()

    ended = Counter()
    for worker in workers:
        ended += worker.ended
    rows = await sql.fetch("SELECT id, status, last_error FROM aiopgq.all_jobs")
    assert Counter(row["id"] for row in rows) == Counter(one.id for one in batch)
    assert ended == Counter(row["id"] for row in rows if row["status"] in ("completed", "failed"))
    assert {row["status"] for row in rows} <= {"completed", "failed", "pending"}
    assert all(row["last_error"] != "stale" for row in rows)
    assert len(ended) > 100
