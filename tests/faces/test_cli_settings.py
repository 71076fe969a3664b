"""Where settings come from: option, constructor, variable, pyproject.toml, default, in this order."""

import pytest
from faces.cli import enqueue

SPEAKING = """
from aiopgq import App
jobs = App({dsn!r}, schema={schema!r})
"""
NOWHERE = "postgresql://postgres@127.0.0.1:1/none"


def schema_asked(said):
    """Return the schema whose tables were looked for."""
    assert said.code == 3, said.err
    return said.err.split("'")[1]


def write_settings(cli, text):
    (cli.folder / "pyproject.toml").write_text(text)


def test_the_schema_is_looked_for_in_order(cli):
    cli.write("speaking", SPEAKING.format(dsn=None, schema="constructor"))
    cli.write("silent", SPEAKING.format(dsn=None, schema=None))
    write_settings(cli, '[tool.aiopgq]\nschema = "file"\n')

    look = ("jobs", "list", "-A")
    asked = [
        cli(*look, "speaking", "--schema", "option", AIOPGQ_SCHEMA="variable"),
        cli("--schema", "group", *look, "speaking"),
        cli(*look, "speaking", AIOPGQ_SCHEMA="variable"),
        cli(*look, "silent", AIOPGQ_SCHEMA="variable"),
        cli(*look, "silent"),
    ]

    assert [schema_asked(said) for said in asked] == ["option", "group", "constructor", "variable", "file"]


def test_the_database_is_looked_for_in_order(cli, dsn):
    cli.write("speaking", SPEAKING.format(dsn=dsn, schema=None))
    cli.write("lost", SPEAKING.format(dsn=NOWHERE, schema=None))
    cli.write("silent", SPEAKING.format(dsn=None, schema=None))

    look = ("jobs", "list", "-A")
    assert cli(*look, "lost", "--dsn", dsn).code == 0
    assert cli(*look, "speaking", AIOPGQ_DSN=NOWHERE).code == 0
    assert cli(*look, "silent").code == 0
    write_settings(cli, f'[tool.aiopgq]\ndsn = "{dsn}"\n')
    assert cli(*look, "silent", AIOPGQ_DSN="", DATABASE_URL=NOWHERE).code == 0


def test_the_app_and_options_of_a_command_may_stand_in_pyproject_toml(cli):
    write_settings(
        cli, '[tool.aiopgq]\napp = "work"\n[tool.aiopgq.run]\nconcurrency = 3\nqueue = ["mail:4", "default"]\n'
    )

    from_file = cli("run", "--burst")
    cli.write("mine", "from work import jobs")
    from_variable = cli("run", "--burst", AIOPGQ_RUN_CONCURRENCY="5", AIOPGQ_APP="mine")
    from_option = cli("run", "--burst", "--concurrency", "7", AIOPGQ_RUN_CONCURRENCY="5")

    assert [said.code for said in (from_file, from_variable, from_option)] == [0, 0, 0]
    assert "serves mail, default with 7 slots" in from_file.err
    assert "serves mail, default with 9 slots" in from_variable.err
    assert "serves mail, default with 11 slots" in from_option.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.aiopgq]\nshema = 'x'", "pyproject.toml, [tool.aiopgq]: there is no setting 'shema'; known are app, "),
        (
            "[tool.aiopgq.tasks.list]\njsn = true",
            "[tool.aiopgq.tasks.list]: there is no setting 'jsn'; known are as_json",
        ),
        ("[tool.aiopgq.tasks.list]\ndsn = 'x'", "[tool.aiopgq.tasks.list]: there is no setting 'dsn'"),
        ("[tool.aiopgq]\ntasks = 3", "pyproject.toml, [tool.aiopgq.tasks]: is a section, not a value"),
        ("[tool.aiopgq", "pyproject.toml cannot be read: "),
    ],
)
def test_a_setting_nobody_reads_is_a_mistake(cli_alone, text, message):
    write_settings(cli_alone, text)

    said = cli_alone("tasks", "list", "-A", "work")

    assert said.code == 2
    assert message in said.err


async def test_neither_a_file_nor_a_variable_says_yes(cli, dsn, sql):
    await enqueue(dsn, "work.add", {"a": 1})

    by_variable = cli("jobs", "cancel", "--all", AIOPGQ_JOBS_CANCEL_YES="1")
    write_settings(cli, "[tool.aiopgq.jobs.cancel]\nyes = true\n")
    by_file = cli("jobs", "cancel", "--all")

    assert by_variable.out == "1 job would be cancelled.\n"
    assert by_file.code == 2
    assert await sql.fetchval("SELECT count(*) FROM aiopgq.jobs") == 1


def test_a_pyproject_toml_without_settings_of_ours_is_no_matter(cli_alone):
    write_settings(cli_alone, '[project]\nname = "aiopgq-user"\n[tool.ruff]\nline-length = 90\n')

    assert cli_alone("tasks", "list", "-A", "work").code == 0
