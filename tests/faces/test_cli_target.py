"""`-A module[:attr]`: what it takes, and what it says when it was given something else."""

import re

import pytest

MODULES = {
    "two": "from aiopgq import App\nmail, jobs = App(), App()",
    "named_twice": "from work import jobs\nqueue = jobs",
    "nothing": "answer = 42",
    "package": "from aiopgq import Router\nmail = Router()",
    "web": "import fastapi, work\napp = fastapi.FastAPI(lifespan=work.jobs.lifespan)",
    "shop": "import aiohttp.web\nfrom work import jobs\napp = aiohttp.web.Application()",
    "broken": "def boom():\n    return 1 / 0\nboom()",
    "leaves": "import sys\nsys.exit(3)",
    "typo": "def f(:\n    pass",
    "needs": "import absent",
    "refused": "from aiopgq import App\njobs = App('mysql://localhost')",
    "late": "from aiopgq import App\njobs = App(imports=['gone'])",
}


@pytest.fixture
def modules(cli_alone):
    for name, text in MODULES.items():
        cli_alone.write(name, text)
    return cli_alone


@pytest.mark.parametrize("target", ["work", "work:jobs", "named_twice", "shop"])
def test_a_module_with_one_app_is_enough(modules, target):
    said = modules("tasks", "list", "-A", target)

    assert said.code == 0
    assert said.out.count("\n") == 1 + 10


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("two", "-A two: there are several Apps; name one: two:mail, two:jobs."),
        ("two:males", "-A two:males: two has no 'males'. Write -A two:jobs or -A two:mail."),
        ("nothing", "-A nothing: there is no App in it. Name the module where you wrote `jobs = App(…)`."),
        (
            "package:mail",
            "-A package:mail: that is a Router, not an aiopgq App. 'mail' is a Router: name the App that includes it.",
        ),
        ("web:app", "-A web:app: that is the web application (fastapi), not an aiopgq App. Write -A work:jobs."),
        ("web", "-A web: there is no App in it. Write -A work:jobs."),
        ("shop:app", "-A shop:app: that is the web application (aiohttp), not an aiopgq App. Write -A shop:jobs."),
        ("work/tasks.py:jobs", "-A work/tasks.py:jobs: takes a module, not a file; write -A work.tasks:jobs."),
        ("queue", "-A queue: 'queue' is a module of Python's own, which others import; rename yours."),
        (":jobs", "-A :jobs: write module or module:attr, such as -A myapp.queue:jobs."),
        ("work.deeper", "-A work.deeper: there is no module 'work.deeper' in FOLDER or where Python looks."),
        (
            "refused",
            (
                "-A refused: dsn: takes postgresql://user:password@host:5432/database (also postgres://, "
                "postgresql+asyncpg://) or embedded:FOLDER, not mysql://. (FOLDER/refused.py:2)"
            ),
        ),
        ("late", "-A late, its imports: importing it fails: ModuleNotFoundError: No module named 'gone'"),
    ],
)
def test_another_target_gets_a_line_that_says_what_would_be_right(modules, target, message):
    said = modules("tasks", "list", "-A", target)

    assert said.code == 2
    assert said.out == ""
    assert said.err.replace(str(modules.folder), "FOLDER").splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("broken", "-A broken: importing it fails: ZeroDivisionError: division by zero (FOLDER/broken.py:3)"),
        ("needs", "-A needs: importing it fails: ModuleNotFoundError: No module named 'absent' (FOLDER/needs.py:1)"),
        ("leaves", "-A leaves: importing it fails: SystemExit: 3 (FOLDER/leaves.py:2)"),
        ("typo", "-A typo: importing it fails: SyntaxError: invalid syntax (typo.py, line 1)"),
    ],
)
def test_an_error_in_the_users_module_is_shown_from_his_first_line_on(modules, target, message):
    said = modules("tasks", "list", "-A", target)

    assert said.code == 2
    told, _, line = said.err.replace(str(modules.folder), "FOLDER").rstrip("\n").rpartition("\n")
    assert line == f"Error: {message}"
    files = re.findall(r'File "([^"]+)"', told)
    assert files
    assert set(files) == {f"FOLDER/{target}.py"}


def test_a_worker_process_says_it_once_for_all(modules):
    said = modules("run", "-A", "broken", "--processes", "2")

    assert said.code == 2
    assert said.err.count("Error: -A broken: importing it fails") == 1
    assert said.err.count("Traceback (most recent call last)") == 1
