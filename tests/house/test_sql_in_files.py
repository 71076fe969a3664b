"""SQL lies in files: no statement in a string of Python, and none of the files is forgotten."""

import ast
import re

import pytest
from house.source import SQL, modules, prose

STATEMENT = re.compile(
    r"""
    ^\s* (?: SELECT | INSERT | UPDATE | DELETE | MERGE | WITH | VALUES | CREATE | ALTER | DROP | TRUNCATE | LOCK
           | SET | RESET | SHOW | BEGIN | COMMIT | ROLLBACK | LISTEN | UNLISTEN | NOTIFY | COPY | EXPLAIN | GRANT
           | REVOKE | CALL | DO | PREPARE | EXECUTE | VACUUM | ANALYZE | COMMENT ) \b
    | (?i: insert \s+ into \s | delete \s+ from \s )
    | (?i: (?: ^ | ; ) \s* (?: select \s | update \s+ [\w."]+ \s+ set \s | (?: create | alter | drop ) \s+
           (?: table | index | schema | function | sequence | view | role ) \b ) )
    """,
    re.VERBOSE,
)
ALLOWED = {
    ("_store.listen", "SELECT pg_notify($1, $2)"): "the listener's proof; it has no schema",
    ("_store.listen", "SELECT 1"): "the listener's ping; it has no schema",
    ("_store.schema", "CREATE SCHEMA IF NOT EXISTS "): "a name cannot be a parameter",
    ("_store.schema", "SET client_encoding = 'UTF8';"): "a line of the script for psql",
    ("_store.schema", "BEGIN;"): "a line of the script for psql",
    ("_store.schema", "COMMIT;"): "a line of the script for psql",
    ("cli.premises", "CREATE SCHEMA "): "a name cannot be a parameter",
    ("cli.premises", "DROP SCHEMA "): "a name cannot be a parameter",
    ("cli.demo.command", "SHOW server_version"): "about the server; it has no schema",
    ("testing.plugin", "DROP SCHEMA IF EXISTS "): "a name cannot be a parameter",
    ("testing.plugin", "SET client_min_messages = warning"): "of the session that drops a test's schema",
}
# The demo plays a user's program, which has a table of its own.
USERS = {"cli.demo.story"}


def statements():
    return {
        (module.name, node.value)
        for module in modules()
        if module.name not in USERS
        for node in set(ast.walk(module.tree)) - prose(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and STATEMENT.search(node.value)
    }


def test_no_string_of_python_is_a_statement_but_the_few_that_must_be():
    assert statements() == set(ALLOWED)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "\n  WITH chosen AS (", "delete from aiopgq.jobs", "x; UPDATE aiopgq.jobs SET a = 1", "LISTEN x"],
)
def test_a_statement_is_recognised(text):
    assert STATEMENT.search(text)


@pytest.mark.parametrize(
    "text", ["Set a retention above 0.", "update the row", "Selected jobs", "drop partitions of the archive"]
)
def test_a_message_is_not_taken_for_a_statement(text):
    assert not STATEMENT.search(text)


def test_every_file_of_sql_is_used_by_the_store():
    words = {
        node.value.removesuffix(".sql")
        for module in modules()
        if module.name.startswith("_store")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert {file.stem for file in SQL.rglob("*.sql")} - words == set()
