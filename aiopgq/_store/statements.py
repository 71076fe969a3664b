"""The statements of `sql/`, one a file, with the schema's name put in.

Each file is plain SQL about the schema `aiopgq`, readable by psql and by linters. Another schema is swapped in
here, once, at load.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Final

from aiopgq.errors import ConfigError

__all__ = ["DEFAULT_SCHEMA", "channel", "check_schema_name", "place_in", "quote", "statement"]

DEFAULT_SCHEMA: Final = "aiopgq"
# Room for what is appended to the name of a NOTIFY channel (63 bytes at most).
_SCHEMA_BYTES: Final = 48
# A comment, a string, or a qualifier of ours. Settings are no tables; they keep their names.
_TOKENS: Final = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\baiopgq\.(?!(?:notify|letting_in)\b)")
_QUALIFIER: Final = re.compile(r"\baiopgq\.(?!(?:notify|letting_in)\b)")


def check_schema_name(schema: str) -> str:
    """Return the name of a schema if it can hold our tables.

    Raises:
        ConfigError: Empty, too long, with NUL or $$, or reserved by PostgreSQL.
    """
    try:
        size = len(schema.encode())
    except UnicodeEncodeError:
        raise ConfigError("schema", f"{schema!r} holds a lone surrogate.") from None
    if not 1 <= size <= _SCHEMA_BYTES or "\x00" in schema:
        raise ConfigError("schema", f"a name has 1 to {_SCHEMA_BYTES} bytes and no NUL, not {schema!r}.")
    if "$$" in schema:
        raise ConfigError("schema", f"{schema!r} holds $$, which ends the body of a function of ours.")
    if schema.startswith("pg_") or schema == "information_schema":
        raise ConfigError("schema", f"{schema!r} is reserved by PostgreSQL.")

    return schema


def quote(identifier: str) -> str:
    """Quote an identifier for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def place_in(schema: str, sql: str) -> str:
    """Put the name of a schema into SQL written for the schema `aiopgq`."""
    if schema == DEFAULT_SCHEMA:
        return sql
    name = quote(schema) + "."
    inside_string = name.replace("'", "''")

    def swap(token: re.Match[str]) -> str:
        text = token.group()
        if text.startswith("--"):
            return text
        if text.startswith("'"):
            return _QUALIFIER.sub(lambda _: inside_string, text)

        return name

    return _TOKENS.sub(swap, sql)


def channel(schema: str, topic: str = "") -> str:
    """Return the NOTIFY channel of a schema: its name, and a topic behind a colon."""
    return f"{schema}:{topic}" if topic else schema


@cache
def statement(name: str, schema: str = DEFAULT_SCHEMA) -> str:
    """Return the statement in `sql/NAME.sql` for a schema."""
    sql = files("aiopgq._store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")

    return place_in(schema, sql)
