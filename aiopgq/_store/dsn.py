"""Where the database is: one connection string out of the settings and the environment."""

import os
import re
from typing import Final
from urllib.parse import urlsplit

from aiopgq.errors import ConfigError

__all__ = ["EMBEDDED", "find_dsn", "masked", "normal"]

EMBEDDED: Final = "embedded:"
_SCHEMES: Final = re.compile(r"^(?:postgres|postgresql)(?:\+\w+)?://", re.IGNORECASE)
_LIBPQ: Final = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGSERVICE", "PGPORT")


def normal(dsn: str) -> str:
    """Return a DSN in the form asyncpg reads; `postgresql+asyncpg://` and its kin lose their driver.

    Raises:
        ConfigError: It is no PostgreSQL URL.
    """
    if dsn.startswith(EMBEDDED):
        return dsn
    bare, hits = _SCHEMES.subn("postgresql://", dsn, count=1)
    if not hits:
        raise ConfigError(
            "dsn",
            "takes postgresql://user:password@host:5432/database (also postgres://, "
            f"postgresql+asyncpg://) or embedded:FOLDER, not {masked(dsn)!r}.",
        )

    return bare


def find_dsn(given: str | None) -> str:
    """Choose the DSN: the one given, AIOPGQ_DSN, DATABASE_URL, or libpq's PG* variables.

    Raises:
        ConfigError: None of them is set, or it is no PostgreSQL URL.
    """
    for dsn in (given, os.environ.get("AIOPGQ_DSN"), os.environ.get("DATABASE_URL")):
        if dsn:
            return normal(dsn)
    if any(os.environ.get(variable) for variable in _LIBPQ):
        return "postgresql://"

    raise ConfigError(
        "dsn",
        "no database is configured. Give App(dsn), or set AIOPGQ_DSN or DATABASE_URL; "
        'App("embedded:./data") starts one of its own.',
    )


def masked(dsn: str) -> str:
    """Return a DSN that can be shown: without its password."""
    try:
        parts = urlsplit(dsn)
        password = parts.password
    except ValueError:
        return re.sub(r":[^:@/]*@", ":***@", dsn)
    if password is None:
        return re.sub(r"(password=)[^&\s]*", r"\1***", dsn)

    return dsn.replace(f":{password}@", ":***@", 1)
