"""Each step opens with what it takes, what it gives, and what holds if the process dies there."""

import re

import pytest
from house.source import modules

STEPS = ["enqueue", "wake", "claim", "run", "settle"]
FLOW = {module.name.removeprefix("_flow."): module for module in modules() if module.name.startswith("_flow.")}
BESIDE = sorted(set(FLOW) - set(STEPS))
MAP = next(module.docstring for module in modules() if module.name == "_flow")


@pytest.mark.parametrize(("number", "name"), list(enumerate(STEPS, start=1)))
def test_a_step_says_its_place_what_it_takes_and_what_it_gives(number, name):
    docstring = FLOW[name].docstring

    assert re.match(rf"{name.capitalize()}, step {number}: a? ?.+ \w+\.\n\n", docstring)
    assert re.search(r"^Takes .*\bgives\b", docstring.replace("\n", " ").replace("  ", "\n"), re.MULTILINE)


@pytest.mark.parametrize("name", BESIDE)
def test_what_goes_beside_the_path_says_so(name):
    assert FLOW[name].docstring.startswith(f"{name.capitalize()}, beside the path: ")


@pytest.mark.parametrize("name", sorted(FLOW))
def test_a_step_says_what_holds_if_the_process_dies_there(name):
    *_, last = FLOW[name].docstring.split("\n\n")

    assert re.match(r"If the process dies here, \S", last)


def test_the_map_of_the_flow_shows_every_step_in_order():
    numbered = re.findall(r"^(\d)\. `(\w+)`", MAP, re.MULTILINE)
    beside = re.findall(r"`(\w+)`", MAP.partition("Beside the path:")[2].partition("\n\n")[0])

    assert numbered == [(str(number), name) for number, name in enumerate(STEPS, start=1)]
    assert beside == BESIDE
