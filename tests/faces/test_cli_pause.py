"""`queues` and `tasks`: paused and resumed from the command line, and seen there."""

from faces.cli import enqueue


def lines(said):
    return [line.rstrip() for line in said.out.splitlines()]


async def test_a_queue_is_paused_listed_and_resumed(cli, dsn, sql):
    await enqueue(dsn, "work.add", {"a": 1}, queue="mail")

    assert cli("queues", "pause", "mail").out == "Queue mail is paused.\n"
    assert cli("queues", "pause", "mail").out == "Queue mail was paused already.\n"
    await sql.execute("UPDATE aiopgq.queues SET paused_at = now() - interval '150 minutes', running = 3")
    assert lines(cli("queues", "list")) == [
        "QUEUE  STATE      READY  WAITING  HELD  RUNNING  WORKERS  LIMIT",
        "mail   paused 2h  1      0        0     0        0        3 running",
    ]
    [told] = cli("queues", "list", "--json").json
    assert (told["queue"], told["ready"], told["most_running"]) == ("mail", 1, 3)
    assert told["paused_at"] is not None

    assert cli("run", "-A", "work", "--burst", "--queue", "mail").code == 0
    assert await sql.fetchval("SELECT status FROM aiopgq.jobs") == "pending"
    assert cli("queues", "resume", "mail").out == "Queue mail goes on.\n"
    assert cli("queues", "resume", "mail").out == "Queue mail was not paused.\n"
    assert cli("run", "-A", "work", "--burst", "--queue", "mail").code == 0
    assert await sql.fetchval("SELECT status FROM aiopgq.archive") == "completed"


async def test_pausing_a_queue_nobody_knows_asks_for_its_name(cli):
    said = cli("queues", "pause", "male")

    assert (said.code, said.out) == (0, "Queue male is paused.\n")
    assert said.err == "It has no jobs and no worker serves it: is that its name?\n"


async def test_pausing_a_task_nobody_knows_asks_for_its_name(cli):
    said = cli("tasks", "pause", "add")

    assert (said.code, said.out) == (0, "Task add is paused.\n")
    assert said.err == "It has no unfinished jobs and no worker knows it: is that its full name, as of `tasks list`?\n"


async def test_a_task_is_paused_and_resumed(cli, dsn, sql):
    await enqueue(dsn, "work.add", {"a": 1})

    said = cli("tasks", "pause", "work.add")
    assert (said.out, said.err) == ("Task work.add is paused.\n", "")
    assert cli("tasks", "pause", "work.add").out == "Task work.add was paused already.\n"
    assert cli("queues", "list").err == "Paused tasks: work.add\n"
    assert cli("run", "-A", "work", "--burst").code == 0
    assert await sql.fetchval("SELECT held FROM aiopgq.jobs") == "paused"
    assert cli("tasks", "resume", "work.add").out == "Task work.add goes on.\n"
    assert cli("tasks", "resume", "work.add").out == "Task work.add was not paused.\n"
    assert cli("run", "-A", "work", "--burst").code == 0
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.archive WHERE status = 'completed'") == 1
