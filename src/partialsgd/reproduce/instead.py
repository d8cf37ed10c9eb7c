"""What a user would do instead of training jointly: distil the core from the whole network, or start it as its SVD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from partialsgd.recipes.settings import Settings
from partialsgd.reproduce.folder import Folder
from partialsgd.reproduce.plans import Make, Row


def distilled(core: str, make: Make, seeds: int) -> Row:
    """The core of that row, taught by the whole network, which is at its end then."""
    return Row(f"distilled-{core}", _after("full", "teacher", make), seeds, core, "full", optional=True)


def warm(core: str, whole: Make, svd: Make, epochs: int, seeds: int) -> Iterator[Row]:
    """Pufferfish: the whole network for half of the epochs, and then its SVD for the others."""
    before = max(1, epochs // 2)
    yield Row("half", _lasting(whole, before), seeds, "full", optional=True)
    after = _after("half", "start", _lasting(svd, max(1, epochs - before)))
    yield Row(f"warm-{core}", after, seeds, core, "half", optional=True)


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
