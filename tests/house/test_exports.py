"""What `import aiopgq` shows: sorted, complete, documented."""

import ast
import inspect
import re
from types import ModuleType

import pytest
from house.source import functions

import aiopgq
from aiopgq import errors


def test_all_is_what_can_be_imported():
    public = [
        name for name, value in vars(aiopgq).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    ]

    assert aiopgq.__all__ == sorted(public)


@pytest.mark.parametrize("name", aiopgq.__all__)
def test_a_public_name_is_documented(name):
    thing = getattr(aiopgq, name)
    members = [
        f"{name}.{member}"
        for member, value in vars(thing).items()
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
        and not inspect.getdoc(value)
    ]  # fmt: skip

    assert re.match(r"\S[^\n]*\.(\n|$)", inspect.getdoc(thing))
    assert members == []


@pytest.mark.parametrize("thing", [aiopgq.App, aiopgq.App.task, aiopgq.Task.enqueue], ids=lambda thing: thing.__name__)
def test_what_everybody_calls_shows_an_example(thing):
    assert re.search(r"^Examples?:\n+ +\S", inspect.getdoc(thing), re.MULTILINE)


def test_a_public_function_says_which_of_our_errors_it_raises():
    silent = {
        f"{function}: {error}"
        for function in functions()
        if function.public
        for error in raised(function.node)
        if error not in function.docstring.partition("Raises:")[2]
    }

    assert silent == set()


def raised(function):
    """Return the errors of ours that a function raises itself, not what lies in it."""
    found, left = set(), list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call | ast.Name):
            found.add(getattr(getattr(node.exc, "func", node.exc), "id", None))
        left += ast.iter_child_nodes(node)
    return found & set(errors.__all__)
