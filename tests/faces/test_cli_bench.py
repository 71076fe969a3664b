"""`bench`: figures of the user's own database, in a schema that is gone afterwards."""

import asyncpg

TINY = ("--jobs", 1000, "--seconds", 0.1, "--samples", 2)


def schemas(databases, dsn):
    async def ask():
        connection = await asyncpg.connect(dsn)
        found = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'aiopgq%' ORDER BY 1")
        await connection.close()
        return [row[0] for row in found]

    return databases.run(ask())


def test_it_measures_in_a_schema_of_its_own_and_drops_it(cli, dsn, databases):
    said = cli("bench", *TINY, "--json")

    assert said.code == 0, said.err
    figures = {one["name"]: one for one in said.json}
    assert list(figures) == [
        "drain",
        "latency, p50",
        "latency, p95",
        "enqueue, one caller",
        "enqueue, 50 callers",
        "enqueue in bulk",
    ]
    assert all(one["number"] > 0 for one in figures.values())
    assert {one["unit"] for one in figures.values()} == {"jobs/s", "ms"}
    assert "1,000 jobs" in figures["drain"]["how"]
    assert schemas(databases, dsn) == ["aiopgq"]
    assert "aiopgq_bench" in said.err


def test_it_is_read_by_people_too(cli):
    said = cli("bench", *TINY)

    assert said.code == 0, said.err
    assert [line.partition("  ")[0] for line in said.out.splitlines()][:2] == ["drain", "latency, p50"]


def test_it_leaves_a_schema_alone_that_is_there_already(cli, dsn, databases):
    async def make():
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE SCHEMA aiopgq_bench")
        await connection.close()

    databases.run(make())
    said = cli("bench", *TINY)

    assert said.code == 2
    assert "another bench runs" in said.err
    assert "DROP SCHEMA" in said.err
    assert schemas(databases, dsn) == ["aiopgq", "aiopgq_bench"]


def test_an_app_without_a_dsn_is_told_what_is_needed(cli):
    cli.write("shop", "from aiopgq import App\nasync def connect(): ...\njobs = App(connect=connect)")
    said = cli("bench", "-A", "shop", *TINY)

    assert said.code == 2
    assert "needs a DSN" in said.err
