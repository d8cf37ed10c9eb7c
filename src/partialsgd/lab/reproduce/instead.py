"""What a user would do instead of training jointly: distil the core from the whole network, or start it as its SVD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Make, Row
from partialsgd.lab.training.settings import Settings


def distilled(core: str, make: Make, seeds: int) -> Row:
    """The core of that row, taught by the whole network, which is at its end then."""
    return Row(f"distilled-{core}", _after("full", "teacher", make), seeds, core, "full", optional=True)


def half(whole: Make, epochs: int, seeds: int) -> Row:
    """The whole network for half of the epochs: what Pufferfish takes the SVD of."""
    return Row("half", _lasting(whole, _before(epochs)), seeds, "full", optional=True)


def warm(core: str, svd: Make, epochs: int, seeds: int) -> Row:
    """Pufferfish: the SVD of that network, for the other half."""
    after = _after("half", "start", _lasting(svd, max(1, epochs - _before(epochs))))
    return Row(f"warm-{core}", after, seeds, core, "half", optional=True)


def _before(epochs: int) -> int:
    return max(1, epochs // 2)


def _lasting(make: Make, epochs: int) -> Make:
    def made(folder: Folder, seed: int) -> Settings | None:
        settings = make(folder, seed)
        return None if settings is None else replace(settings, epochs=epochs)

    return made


def _after(row: str, option: str, make: Make) -> Make:
    """Settings that name the finished run of another row, with the same seed."""

    def made(folder: Folder, seed: int) -> Settings | None:
        before, settings = folder.ended(folder.run(row, seed)), make(folder, seed)
        if before is None or before.summary is None or settings is None:
            return None
        changes: Any = {option: str(before.path.resolve())}
        return replace(settings, **changes)

    return made
