"""How tests are written: against a real PostgreSQL, waiting for events, with a sentence for a name."""

import ast
import re

import pytest
from house.source import ROOT, modules

TESTS = modules(ROOT / "tests")
# Where a sleep is what it is about: waits that fail by name, and a network that is slow.
SLEEPERS = {"eventually", "_pump"}


def naps(tree, inside=()):
    """Yield the line of every sleep that is neither zero, nor work simulated by a task, nor a wait for a condition."""
    for node in ast.iter_child_nodes(tree):
        within = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            task = any("task" in ast.unparse(decorator) for decorator in node.decorator_list)
            within = (*inside, task or node.name in SLEEPERS)
        if is_nap(node) and not any(inside):
            yield node.lineno
        yield from naps(node, within)


def is_nap(node):
    sleeps = isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "asyncio.sleep",
        "time.sleep",
        "anyio.sleep",
        "sleep",
    )
    return sleeps and ast.unparse(node.args[0]) != "0"


@pytest.mark.parametrize("module", TESTS, ids=lambda module: module.name)
def test_no_test_waits_by_sleeping(module):
    assert list(naps(module.tree)) == []


def test_no_test_fakes_what_it_is_about():
    fakes = re.compile(r"^\s*(?:from|import) (?:unittest|mock|pytest_mock)\b", re.MULTILINE)

    assert [module.name for module in TESTS if fakes.search(module.text)] == []


def test_the_name_of_a_test_is_a_sentence():
    short = [
        f"{module.name}: {node.name}"
        for module in TESTS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name.split("_")) < 4
    ]

    assert short == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("async def test(): await asyncio.sleep(1)", [1]),
        ("async def test(): await asyncio.sleep(0)", []),
        ("@jobs.task\nasync def slow(): await asyncio.sleep(1)", []),
        ("@router.task(queue='q')\ndef slow(): time.sleep(0.1)", []),
        ("def helper():\n    def inner(): time.sleep(0.1)", [2]),
    ],
)
def test_a_nap_is_found(code, found):
    assert list(naps(ast.parse(code))) == found
