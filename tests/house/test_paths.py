"""What the prose points to is there."""

import re

import pytest
from house.source import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"`((?:\./)?(?:\.ci|aiopgq|benchmarks|docs|examples|migrations|tests)/[\w./*-]*|[A-Z]+\.md)`")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)")
TARGET = re.compile(r"\bmake ([a-z-]+)\b(?=[`\n]|  )")


def named(text):
    """Return the paths a page names, in code from the root and in links from where it lies."""
    return [path.removeprefix("./") for path in CODE.findall(text)], LINK.findall(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_a_page_names_is_there(page):
    from_root, from_here = named(page.read_text(encoding="utf-8"))

    assert [path for path in from_root if not any(ROOT.glob(path.rstrip("/")))] == []
    assert [path for path in from_here if not (page.parent / path).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / ".ci" / "run"], ids=lambda page: page.name)
def test_every_target_of_make_a_page_names_is_there(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert set(TARGET.findall(page.read_text(encoding="utf-8") + "\n")) <= set(targets)


def test_paths_are_found_in_code_and_in_links():
    text = "see `aiopgq/nowhere.py`, [there](docs/a.md#b) and [the web](https://example.org), not `jobs/second`"

    assert named(text) == (["aiopgq/nowhere.py"], ["docs/a.md"])
    assert TARGET.findall("run `make nothing`, which will make sense") == ["nothing"]
