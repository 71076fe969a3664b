"""A schema as text out of the catalogs, the same on every supported version of PostgreSQL."""

# Partitions of the archive come and go with the days; they are not part of the dump.
_RELATIONS = """
SELECT c.oid, c.relname, c.relkind::text, c.relpersistence::text, c.reloptions,
    pg_get_partkeydef(c.oid) AS partition_key, obj_description(c.oid, 'pg_class') AS comment
FROM pg_class c
WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition
ORDER BY c.relkind, c.relname
"""

_COLUMNS = """
SELECT format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod))
    || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
    || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')
    || coalesce(' -- ' || col_description(a.attrelid, a.attnum), '')
FROM pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# From 18 on, NOT NULL is a constraint too; the columns show it already.
_CONSTRAINTS = """
SELECT format('CONSTRAINT %I %s', conname, pg_get_constraintdef(oid))
FROM pg_constraint WHERE conrelid = $1 AND contype <> 'n' ORDER BY conname
"""

_INDEXES = """
SELECT pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = $1 ORDER BY relname
"""

_TRIGGERS = """
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal ORDER BY tgname
"""

_SEQUENCE = """
SELECT format('AS %s START %s MINVALUE %s MAXVALUE %s INCREMENT %s CACHE %s%s', format_type(seqtypid, NULL),
    seqstart, seqmin, seqmax, seqincrement, seqcache, CASE WHEN seqcycle THEN ' CYCLE' ELSE '' END)
FROM pg_sequence WHERE seqrelid = $1
"""

_FUNCTIONS = """
SELECT format('FUNCTION %s(%s)', p.oid::regproc, pg_get_function_arguments(p.oid)) AS signature,
    concat_ws(' ',
        coalesce('RETURNS ' || pg_get_function_result(p.oid), ''), 'LANGUAGE', l.lanname,
        CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END,
        'PARALLEL', CASE p.proparallel WHEN 's' THEN 'SAFE' WHEN 'r' THEN 'RESTRICTED' ELSE 'UNSAFE' END,
        CASE WHEN p.proisstrict THEN 'STRICT' END, CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' END) AS kind,
    p.proconfig AS settings, coalesce(pg_get_function_sqlbody(p.oid), 'md5 ' || md5(p.prosrc)) AS body,
    obj_description(p.oid, 'pg_proc') AS comment
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace = $1::text::regnamespace
ORDER BY p.proname, pg_get_function_arguments(p.oid) COLLATE "C"
"""

_KINDS = {"r": "TABLE", "p": "TABLE", "v": "VIEW", "S": "SEQUENCE"}


async def dump_schema(connection, schema="aiopgq"):
    """Return tables, views, sequences and functions of a schema, an indented block each."""
    # The catalogs qualify a name that the search path does not find.
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = ''")
        blocks = [await _relation(connection, row) for row in await connection.fetch(_RELATIONS, schema)]
        blocks += [_function(row) for row in await connection.fetch(_FUNCTIONS, schema)]

    return "\n".join("\n    ".join(lines) + "\n" for lines in blocks)


async def _relation(connection, row):
    unlogged = "UNLOGGED " if row["relpersistence"] == "u" else ""
    lines = [f"{unlogged}{_KINDS[row['relkind']]} {row['relname']}"]
    if row["comment"]:
        lines.append(f"-- {row['comment']}")
    if row["partition_key"]:
        lines.append(f"PARTITION BY {row['partition_key']}")
    if row["reloptions"]:
        lines.append(f"WITH ({', '.join(row['reloptions'])})")
    parts = [_SEQUENCE] if row["relkind"] == "S" else [_COLUMNS, _CONSTRAINTS, _INDEXES, _TRIGGERS]
    for part in parts:
        lines += [found[0] for found in await connection.fetch(part, row["oid"])]

    return lines


def _function(row):
    lines = [row["signature"]]
    if row["comment"]:
        lines.append(f"-- {row['comment']}")
    lines.append(row["kind"])
    lines += [f"SET {setting}" for setting in row["settings"] or ()]
    lines.append(row["body"])

    return lines
