"""The project as text: the modules of the package, parsed once."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGE", "ROOT", "SQL", "Function", "Module", "functions", "modules", "prose"]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aiopgq"
SQL = PACKAGE / "_store" / "sql"


class Module(NamedTuple):
    """A module: its name without `aiopgq.`, its text, its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def docstring(self):
        return ast.get_docstring(self.tree) or ""


class Function(NamedTuple):
    """A function, with the names of what it lies in."""

    module: str
    path: tuple[str, ...]
    node: ast.FunctionDef | ast.AsyncFunctionDef

    def __str__(self):
        return ".".join((self.module, *self.path))

    @property
    def docstring(self):
        return ast.get_docstring(self.node) or ""

    @property
    def public(self):
        """Whether its module offers it."""
        return not any(name.startswith(("_", "<")) for name in self.path)


@cache
def modules(folder=PACKAGE):
    """Return the modules of a folder, by name."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        name = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        found.append(Module(name, text, ast.parse(text)))
    assert found
    return tuple(found)


def functions():
    """Yield every function of the package, methods and inner functions too."""
    for module in modules():
        yield from _functions(module.name, (), module.tree)


def _functions(module, path, tree):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inside = (*path, node.name)
            if not isinstance(node, ast.ClassDef):
                yield Function(module, inside, node)
                inside = (*inside, "<locals>")
            yield from _functions(module, inside, node)
        else:
            yield from _functions(module, path, node)


def prose(tree):
    """Return the nodes that are docstrings."""
    owners = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {owner.body[0].value for owner in owners if ast.get_docstring(owner) is not None}
