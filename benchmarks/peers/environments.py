"""Where a peer runs: a virtual environment of its own under `.cache/peers`, made from its pinned requirements."""

import asyncio
import hashlib
import os
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "Unavailable", "environment"]

ROOT: Final = Path(__file__).parents[2]
_CACHE: Final = ROOT / ".cache" / "peers"
_REQUIREMENTS: Final = Path(__file__).parent / "requirements"
_NEWER: Final = ("python3.12", "python3.13", "python3.14")


class Unavailable(Exception):
    """A peer cannot be run here; its text says why."""


async def environment(name: str, least: tuple[int, int]) -> str:
    """Return the Python of a peer's environment; make it if it is missing or its requirements have changed.

    Args:
        name: The peer.
        least: The oldest Python it runs on.

    Raises:
        Unavailable: There is no such Python, or the packages could not be installed.
    """
    requirements = _REQUIREMENTS / f"{name}.txt"
    base = await _python(least)
    folder = _CACHE / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    wanted = _fingerprint(base, requirements)
    if ready.exists() and ready.read_text() == wanted:
        return str(python)

    await _done(base, "-m", "venv", "--clear", str(folder))
    await _done(str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", str(requirements))
    ready.write_text(wanted)

    return str(python)


async def _python(least: tuple[int, int]) -> str:
    """Return the Python that runs the benchmark, or the first newer one that is new enough."""
    if sys.version_info[:2] >= least:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [found for name in _NEWER if (found := shutil.which(name))]
    candidates += [str(folder / "bin" / "python") for folder in sorted(pyenv.glob("3.1[2-9].*"))]
    for candidate in candidates:
        try:
            await _done(candidate, "-c", f"import sys; sys.exit(sys.version_info[:2] < {least})")
        except Unavailable:
            continue
        return candidate
    raise Unavailable(f"it needs Python {'.'.join(map(str, least))}, and none is in pyenv or on the PATH")


def _fingerprint(base: str, requirements: Path) -> str:
    """Name what an environment is made of, however the interpreter was called."""
    return hashlib.sha256(os.path.realpath(base).encode() + requirements.read_bytes()).hexdigest()


async def _done(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    if process.returncode:
        *_, last = output.decode().strip().splitlines() or ["no output"]
        raise Unavailable(f"`{' '.join(command[1:4])} …` failed: {last}")
