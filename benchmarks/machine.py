"""Who else used the machine while we measured: a figure taken in company is worth less."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, process_time

_STAT = Path("/proc/stat")


class Company:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._began, self._own, self._all = monotonic(), process_time(), _busy()

    def share(self) -> float | None:
        """How much of the machine's processor time went to others so far; None where the system does not say."""
        now = _busy()
        if now is None or self._all is None:
            return None
        passed = (monotonic() - self._began) * (os.cpu_count() or 1)
        return round(max(0.0, (now - self._all) - (process_time() - self._own)) / max(passed, 1e-9), 3)


def _busy() -> float | None:
    """Seconds that all processors together have worked since the machine was started."""
    if not _STAT.exists():
        return None
    ticks = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks[:8]) - idle - waiting) / os.sysconf("SC_CLK_TCK")
