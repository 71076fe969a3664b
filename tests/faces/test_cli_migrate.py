"""`migrate`: plan, script and deed, with an App or with no more than a DSN."""

import asyncpg
import pytest

from aiopgq._store.schema import migrations

NEWEST = len(migrations())


@pytest.fixture
def cli_empty(cli, empty_dsn):
    """The command line on a database that holds nothing of ours."""
    cli.env["AIOPGQ_DSN"] = empty_dsn
    return cli


async def execute(dsn, script):
    connection = await asyncpg.connect(dsn)
    await connection.execute(script)
    await connection.close()


def test_it_plans_and_does_and_finds_nothing_left_to_do(cli_empty):
    plan = cli_empty("migrate", "--plan")
    listed = cli_empty("migrate", "--plan", "--json").json
    done = cli_empty("migrate")
    again = cli_empty("migrate")

    assert [plan.code, done.code, again.code] == [0, 0, 0]
    assert plan.out == done.out
    assert plan.out.splitlines()[0].split() == ["NUMBER", "PHASE", "EFFECT"]
    assert [int(line.split()[0]) for line in plan.out.splitlines()[1:]] == [one["number"] for one in listed]
    assert [one["number"] for one in listed] == list(range(1, NEWEST + 1))
    assert set(listed[0]) == {"number", "name", "phase", "effect"}
    assert plan.err == f"Schema 'aiopgq': {NEWEST} migrations to apply.\n"
    assert done.err == f"Schema 'aiopgq': {NEWEST} migrations applied.\n"
    assert (again.out, again.err) == ("", "Schema 'aiopgq': 0 migrations applied.\n")


def test_it_takes_the_app_or_just_a_database_and_a_schema(cli, empty_dsn):
    cli.env.pop("AIOPGQ_DSN")
    cli.write("shop", f"from aiopgq import App\njobs = App({empty_dsn!r}, schema='shop')")

    assert cli("migrate", "-A", "shop").err == f"Schema 'shop': {NEWEST} migrations applied.\n"
    assert cli("migrate", "--dsn", empty_dsn, "--schema", 'odd "name').err == (
        f"Schema 'odd \"name': {NEWEST} migrations applied.\n"
    )
    nowhere = cli("migrate")
    assert nowhere.code == 2
    assert nowhere.err.startswith("Error: dsn: no database is configured.")


def test_its_script_does_what_it_does(cli_empty, empty_dsn, databases):
    script = cli_empty("migrate", "--sql")
    assert script.code == 0
    assert script.out == cli_empty("migrate", "--sql", "--after", 0, AIOPGQ_DSN="postgresql://127.0.0.1:1/none").out

    databases.run(execute(empty_dsn, script.out))

    assert cli_empty("migrate").err == "Schema 'aiopgq': 0 migrations applied.\n"
    assert "record_migration" not in cli_empty("migrate", "--sql").out
    assert "CREATE TABLE" not in cli_empty("migrate", "--sql").out


@pytest.mark.parametrize("options", [("--plan", "--sql"), ("--after", "3")])
def test_options_that_exclude_each_other_are_refused(cli_alone, options):
    assert cli_alone("migrate", *options).code == 2


def test_a_database_that_does_not_answer_gives_4(cli_alone):
    said = cli_alone("migrate")

    assert said.code == 4
    assert said.err.startswith("Error: PostgreSQL cannot be reached or does not answer")
    assert said.err.count("\n") == 1
