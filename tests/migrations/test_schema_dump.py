"""The sum of the migrations is the schema that `schema.sql` shows; AIOPGQ_WRITE_GOLDEN=1 writes it anew."""

import os
from pathlib import Path

import asyncpg
from schema_dump import dump_schema

GOLDEN = Path(__file__).with_name("schema.sql")
TITLE = "-- What the migrations add up to. Written by AIOPGQ_WRITE_GOLDEN=1 pytest tests/migrations\n\n"


async def test_the_migrations_add_up_to_the_schema_on_record(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        schema = TITLE + await dump_schema(connection)
    finally:
        await connection.close()

    if os.environ.get("AIOPGQ_WRITE_GOLDEN"):
        GOLDEN.write_text(schema, encoding="utf-8")

    assert GOLDEN.read_text(encoding="utf-8") == schema
