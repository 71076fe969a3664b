"""Debezium reads the table from the log of changes; its Outbox Event Router takes INSERTs and DELETEs, nothing else."""

import re

import asyncpg
import pytest
from faces.cli import alive
from support import eventually

from aiopgq import App
from aiopgq.embedded import EmbeddedServer

pytestmark = pytest.mark.slow

SLOT = "SELECT pg_create_logical_replication_slot('changes', 'test_decoding')"
CHANGES = "SELECT data FROM pg_logical_slot_get_changes('changes', NULL, NULL)"


@pytest.fixture
async def logical_dsn(tmp_path):
    """The DSN of a migrated server of its own that logs what a logical decoder needs."""
    hold = EmbeddedServer.start(tmp_path / "server")
    try:
        connection = await asyncpg.connect(hold.dsn)
        await connection.execute("ALTER SYSTEM SET wal_level = logical")
        postmaster = int((tmp_path / "server" / "data" / "postmaster.pid").read_text().split()[0])
        await connection.close()
    finally:
        hold.close()
    # Its setting counts from the next start.
    await eventually(lambda: not alive(postmaster), what="the server has ended")
    hold = EmbeddedServer.start(tmp_path / "server")
    try:
        await App(hold.dsn).migrate()
        yield hold.dsn
    finally:
        hold.close()


async def test_without_a_relay_the_log_of_changes_holds_inserts_and_deletes_only(logical_dsn):
    async with App(logical_dsn) as jobs:
        connection = await asyncpg.connect(logical_dsn)
        try:
            await connection.fetch(SLOT)
            for number in range(3):
                await jobs.outbox.add(
                    connection, aggregate_type="order", aggregate_id=7, event_type="Counted", payload=number
                )
            await jobs.outbox.prune(0, unpublished=True)
            changes = [row["data"] for row in await connection.fetch(CHANGES)]
        finally:
            await connection.close()

    ours = [found[1] for change in changes if (found := re.match(r"table aiopgq\.outbox: (\w+):", change))]
    assert ours == ["INSERT"] * 3 + ["DELETE"] * 3
