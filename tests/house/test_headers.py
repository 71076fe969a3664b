"""Every file of SQL opens with a header of one form; tests/store and tests/migrations prove what it says."""

import re

import pytest
from house.source import ROOT, SQL

HEADER = re.compile(
    r"-- (?P<name>[a-z_]+): [^\n]*[^\n.]\n"
    r"--\n"
    r"(?:(?P<parameters>(?:--   \$\d+ +\S+  +\S[^\n]*\n)+)--\n)?"
    r"-- Locks:   \S[^\n]*\n"
    r"-- Index:   \S[^\n]*\n"
    r"-- Returns: \S[^\n]*\n"
    r"(?!--)"
)
MIGRATION = re.compile(
    r"-- (?P<number>\d{4}): [^\n]*[^\n.]\n"
    r"-- phase: (?:before|after)\n"
    r"-- oldest code: [1-9]\d*\n"
    r"-- locks: \S[^\n]*\n"
    r"(?:--\n(?:-- \S[^\n]*\n)+)?"
    r"\n"
)
STATEMENTS = sorted(SQL.glob("*.sql"))
MIGRATIONS = sorted((ROOT / "migrations").iterdir())


@pytest.mark.parametrize("file", STATEMENTS, ids=lambda file: file.stem)
def test_a_statement_opens_with_name_parameters_locks_index_and_result(file):
    header = HEADER.match(file.read_text())

    assert header
    assert header["name"] == file.stem


@pytest.mark.parametrize("file", STATEMENTS, ids=lambda file: file.stem)
def test_a_statement_uses_the_parameters_its_header_names(file):
    text = file.read_text()
    header = HEADER.match(text)
    named = re.findall(r"^--   (\$\d+) ", header["parameters"] or "", re.MULTILINE)

    assert named == [f"${number}" for number in range(1, len(named) + 1)]
    assert set(re.findall(r"\$\d+", text[header.end() :])) == set(named)


@pytest.mark.parametrize("file", STATEMENTS, ids=lambda file: file.stem)
def test_the_parameters_of_a_header_stand_in_columns(file):
    lines = (HEADER.match(file.read_text())["parameters"] or "").splitlines()
    columns = {re.match(r"(--   \$\d+ +)(\S+ +)", line).span(column) for line in lines for column in (1, 2)}

    assert len(columns) == len({start for start, _ in columns}) <= 2


@pytest.mark.parametrize("file", MIGRATIONS, ids=lambda file: file.name)
def test_a_migration_opens_with_its_effect_phase_and_locks(file):
    header = MIGRATION.match(file.read_text())

    assert re.fullmatch(r"\d{4}_[a-z_]+\.sql", file.name)
    assert header
    assert header["number"] == file.name[:4]


@pytest.mark.parametrize("file", [*STATEMENTS, *MIGRATIONS], ids=lambda file: file.name)
def test_sql_holds_no_stray_blanks(file):
    lines = file.read_text().splitlines(keepends=True)

    assert [line for line in lines if "\t" in line or line != line.rstrip() + "\n"] == []
    assert lines[-1].strip()


def test_migrations_are_numbered_without_a_gap():
    assert [file.name[:4] for file in MIGRATIONS] == [f"{number:04}" for number in range(1, len(MIGRATIONS) + 1)]
