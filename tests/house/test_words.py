"""One word, one thing: no synonym in a name of the package or of its SQL."""

import ast
import re

import pytest
from house.source import ROOT, SQL, modules

SYNONYMS = {"fetch", "dequeue", "ack", "nack", "requeue", "payload", "defer", "deferred", "retries"}
# PostgreSQL's own words: a statement's rows are fetched, a NOTIFY carries a payload.
# An outbox has a column payload, as that of Debezium and of everybody else.
OWN = {
    "_store": {"fetch"},
    "_store.listen": {"payload"},
    "_flow.listen": {"payload"},
    "_words.outbox_event": {"payload"},
    "outbox": {"payload"},
}
OUTBOX = "payload"
HEARD = {"heard", "_heard"}
# The demo's tasks are a user's; he names them as he likes.
USERS = {"cli.demo.shop", "cli.demo.story"}


def words(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names(tree):
    """Yield the names a module gives: to functions, classes, parameters, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            # The second parameter of a callback of LISTEN is what PostgreSQL calls the payload.
            yield from (one.arg for one in node.args.args if node.name not in HEARD)
            yield from (one.arg for one in node.args.kwonlyargs)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def allowed(module):
    return set().union(*(words for name, words in OWN.items() if f"{module}.".startswith(f"{name}.")))


def test_no_name_of_the_package_is_a_synonym():
    synonyms = {
        f"{module.name}: {name}"
        for module in modules()
        if module.name not in USERS
        for name in names(module.tree)
        if words(name) & (SYNONYMS - allowed(module.name))
    }

    assert synonyms == set()


def test_no_name_in_sql_is_a_synonym():
    synonyms = {
        f"{file.name}: {name}"
        for file in [*SQL.rglob("*.sql"), *(ROOT / "migrations").glob("*.sql")]
        for name in re.findall(r"\w+", re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", file.read_text()))
        if words(name) & SYNONYMS and name not in (OUTBOX, f"p_{OUTBOX}")
    }

    assert synonyms == set()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def dequeue(): pass", "dequeue"),
        ("def f(payload): pass", "payload"),
        ("def f(*, max_retries): pass", "max_retries"),
        ("self.ackTimeout = 1", "ackTimeout"),
        ("class DeferJob: pass", "DeferJob"),
    ],
)
def test_a_synonym_is_found_wherever_it_hides(code, found):
    [name] = [name for name in names(ast.parse(code)) if words(name) & SYNONYMS]

    assert name == found
