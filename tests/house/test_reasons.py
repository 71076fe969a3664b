"""An exception to a rule carries its reason."""

import re
import tomllib

import pytest
from house.source import ROOT, modules

FOLDERS = [
    folder for name in ("aiopgq", "tests", "benchmarks", "examples") if any((folder := ROOT / name).rglob("*.py"))
]
SILENCED = re.compile(r"#\s*(?:ruff: noqa|noqa|type: ignore|pyright: ignore|pragma: no)\b(?P<rest>.*)")
REASONED = re.compile(r"[:\[ ][^#]*#\s*[a-zA-Z`'\"(].{5,}")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_silenced_rule_is_named_and_says_why(folder):
    bare = [
        f"{folder.name}/{module.name}:{number}: {line.strip()}"
        for module in modules(folder)
        # There, what a checker refuses is the expectation.
        if not module.name.startswith("typing.")
        for number, line in enumerate(module.text.splitlines(), start=1)
        for silenced in SILENCED.finditer(line)
        if "SILENCED" not in line and not REASONED.fullmatch(silenced["rest"])
    ]

    assert bare == []


@pytest.mark.parametrize(
    ("file", "lists"),
    [("pyproject.toml", r'^    "[A-Z]+\d*",'), (".squawk.toml", r'^    "[a-z-]+",')],
)
def test_a_rule_that_is_off_everywhere_says_why(file, lists):
    text = (ROOT / file).read_text()
    off = [line for line in text.splitlines() if re.match(lists, line)]

    assert tomllib.loads(text)
    assert off
    assert [line for line in off if not re.search(r"# \w.{5,}", line)] == []
