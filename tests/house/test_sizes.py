"""Small: a module fits into a head, a function onto a screen."""

import tomllib

from house.source import ROOT, modules


def test_no_module_has_more_than_400_lines():
    lines = {module.name: len(module.text.splitlines()) for module in modules()}

    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_the_linter_caps_every_function_at_40_statements():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    silenced = [*lint["ignore"], *(rule for rules in lint["per-file-ignores"].values() for rule in rules)]

    assert lint["pylint"]["max-statements"] == 40
    assert "ALL" in lint["select"]
    assert [rule for rule in silenced if "PLR0915".startswith(rule)] == []
    assert [module.name for module in modules() if "PLR0915" in module.text] == []


def test_no_module_is_named_for_nothing():
    nameless = {"utils", "util", "helpers", "common", "base", "manager", "managers", "misc", "types", "models"}

    assert [module.name for module in modules() if nameless & set(module.name.strip("_").split("."))] == []
