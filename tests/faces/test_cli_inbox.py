"""`inbox`: what it writes, and what it deletes."""

import asyncpg
import pytest

FILL = """
INSERT INTO aiopgq.inbox (received_at, consumer, message_id)
SELECT clock_timestamp() - make_interval(days => n), CASE WHEN n % 2 = 0 THEN 'billing' ELSE 'mail' END, n::text
FROM generate_series(0, 10) n
"""


@pytest.fixture
async def sql(dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute(FILL)
    yield connection
    await connection.close()


async def test_the_status_counts_the_messages_of_each_consumer(cli, sql):
    head, *lines = cli("inbox", "status").out.splitlines()
    told = cli("inbox", "status", "--json").json

    assert head.split() == ["CONSUMER", "MESSAGES", "OLDEST", "NEWEST"]
    assert [line.split()[:2] for line in lines] == [["billing", "6"], ["mail", "5"]]
    assert [(one["consumer"], one["messages"]) for one in told] == [("billing", 6), ("mail", 5)]
    assert told[0]["oldest"] < told[0]["newest"]


async def test_pruning_keeps_the_window_which_is_seven_days_unless_said(cli, sql):
    assert cli("inbox", "prune").out == "4 messages deleted.\n"
    assert cli("inbox", "prune", "--window", "36h").out == "5 messages deleted.\n"
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.inbox") == 2


async def test_pruning_keeps_what_the_app_wants_to_know(cli, sql):
    cli.write("patient", "from aiopgq import App\njobs = App(inbox_window=365 * 86_400)")

    assert cli("inbox", "prune", "-A", "patient").out == "0 messages deleted.\n"
    assert cli("inbox", "prune").out == "4 messages deleted.\n"


async def test_an_empty_inbox_says_so(cli, sql):
    await sql.execute("DELETE FROM aiopgq.inbox")

    assert cli("inbox", "status").err == "No message was received.\n"
    assert cli("inbox", "prune").out == "0 messages deleted.\n"
