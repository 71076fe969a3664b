"""The tree drawn in errors.py is the tree; an error carries its facts, and says what happened in sentences."""

import copy
import inspect
import pickle
import re
import typing
from uuid import UUID

import pytest

from aiopgq import errors

CLASSES = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.AiopgqError)]
# A family is raised as itself only where no leaf fits; whoever does so writes the message.
LEAVES = [kind for kind in CLASSES if "__init__" in vars(kind) and kind is not errors.JobError]

SENTENCES = re.compile(r"\S.*[\w)`]\.", re.DOTALL)


def drawn():
    """Read the drawing: an error's name, its family, the built-in it also is."""
    line = re.compile(r"    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +\((?P<builtin>\w+)\))?(?: {2,}\S.*| \S.*)?")
    found, above = [], {}
    for match in filter(None, map(line.fullmatch, errors.__doc__.splitlines())):
        depth = len(match["branch"]) // 4
        above[depth] = match["name"]
        found.append((match["name"], above.get(depth - 1, "Exception"), match["builtin"]))
    return found


def facts_of(kind, *, missing=False):
    """Return a value for each fact of an error, None for those that may be missing if they are to be."""
    facts = {}
    for place, (name, parameter) in enumerate(inspect.signature(kind).parameters.items(), start=11):
        takes = typing.get_args(parameter.annotation) or (parameter.annotation,)
        values = {UUID: UUID(int=place), int: place, float: place + 0.5, str: f"the {name}"}
        if not (missing and type(None) in takes):
            facts[name] = next((values[one] for one in takes if one in values), [{"attempt": place}])
        elif parameter.default is parameter.empty:
            facts[name] = None
    return facts


@pytest.fixture(params=LEAVES, ids=lambda kind: kind.__name__)
def error(request):
    return request.param(**facts_of(request.param))


def test_the_drawing_is_the_tree():
    classes = [(kind.__name__, *(base.__name__ for base in kind.__bases__)) for kind in CLASSES]

    assert [tuple(filter(None, entry)) for entry in drawn()] == classes


def test_the_module_exports_the_whole_tree():
    assert sorted(kind.__name__ for kind in CLASSES) == errors.__all__


def test_a_family_knows_its_exit_code():
    codes = {kind: kind.exit_code for kind in CLASSES}

    assert codes[errors.AiopgqError] == 1
    assert {codes[kind] for kind in CLASSES if issubclass(kind, errors.UsageError)} == {2}
    assert {codes[kind] for kind in CLASSES if issubclass(kind, errors.SchemaError)} == {3}
    assert {codes[kind] for kind in CLASSES if issubclass(kind, errors.StoreError)} == {4}
    assert {codes[kind] for kind in CLASSES if issubclass(kind, errors.JobError)} == {1}


def test_the_facts_of_an_error_are_fields(error):
    assert {name: getattr(error, name) for name in facts_of(type(error))} == facts_of(type(error))


def test_an_error_speaks_in_sentences_and_names_its_facts(error):
    told = [fact for name, fact in facts_of(type(error)).items() if name != "errors"]

    assert re.fullmatch(SENTENCES, str(error))
    assert [fact for fact in told if str(fact) not in str(error)] == []


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_an_error_does_not_speak_of_what_is_missing(kind):
    error = kind(**facts_of(kind, missing=True))

    assert re.fullmatch(SENTENCES, str(error))
    assert "None" not in str(error).replace("default=None", "")


@pytest.mark.parametrize("reason", ["is too long", "is too long."])
@pytest.mark.parametrize("kind", [errors.ArgumentError, errors.ConfigError], ids=lambda kind: kind.__name__)
def test_a_reason_becomes_a_sentence(kind, reason):
    error = kind(**{**facts_of(kind), "reason": reason})

    assert str(error).endswith(" is too long.")


def test_an_error_survives_the_way_to_another_process(error):
    twin = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes

    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


def test_an_error_can_be_copied(error):
    twin = copy.copy(error)

    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
