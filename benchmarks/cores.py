"""How busy the cores of this machine are, and with whom; 0 where Linux does not tell."""

import os
from pathlib import Path
from typing import Final

__all__ = ["busy_seconds", "seconds_of"]

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Return the seconds all cores together were busy since the machine was started."""
    if not (stat := _PROC / "stat").exists():
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])

    return (user + nice + system + irq + softirq) / _TICKS


def seconds_of(pid: int) -> float:
    """Return the CPU time a process has used since it was started."""
    if not (stat := _PROC / str(pid) / "stat").exists():
        return 0.0
    # The name, in brackets, may hold anything.
    fields = stat.read_text().rpartition(")")[2].split()
    user, system = fields[11:13]

    return (int(user) + int(system)) / _TICKS
