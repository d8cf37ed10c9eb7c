"""The core distilled from the whole network, and the core that starts as its SVD."""

from __future__ import annotations

from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Row, always

from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import instead
from tests.lab.reproduce.made import look, run

CORE = always(Translation(epochs=9, alone="core", init="svd"))


def unknown(folder: Folder, seed: int) -> None:
    """As an experiment has it while its start is not known."""


def made(row: Row, folder: Folder, seed: int = 0) -> Translation | None:
    settings = row.make(folder, seed)
    assert settings is None or isinstance(settings, Translation)
    return settings


def test_the_distilled_core_waits_for_its_teacher_of_the_same_seed(tmp_path: Path) -> None:
    folder, row = Folder(tmp_path), instead.distilled("core-1_4", CORE, 2)
    assert (row.name, row.tuned_as, row.waits_for, row.optional) == ("distilled-core-1_4", "core-1_4", "full", True)
    teacher = run(folder.run("full", 1), [look(full=0.1)], {"full": 0.1})
    found = made(row, folder, 1)
    assert made(row, folder, 0) is None
    assert found is not None and (found.teacher, found.epochs) == (str(teacher.resolve()), 9)


@pytest.mark.parametrize(("epochs", "before", "after"), [(9, 4, 5), (8, 4, 4), (1, 1, 1)])
def test_the_svd_has_the_epochs_that_the_whole_network_leaves(
    epochs: int, before: int, after: int, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    half = instead.half(always(Translation(epochs=epochs, nest="none")), epochs, 1)
    warm = instead.warm("core-1_4", CORE, epochs, 1)
    first = made(half, folder)
    assert first is not None and (first.epochs, first.nest) == (before, "none")
    assert (half.name, half.tuned_as, warm.name, warm.tuned_as) == ("half", "full", "warm-core-1_4", "core-1_4")
    assert made(warm, folder) is None
    whole = run(folder.run("half", 0), [look(full=0.1)], {"full": 0.1})
    second = made(warm, folder)
    assert second is not None and (second.start, second.epochs) == (str(whole.resolve()), after)


def test_nothing_starts_from_what_diverged_or_is_not_known(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name in ("full", "half"):
        run(folder.run(name, 0), [look(full=0.1)], None)
    warm = instead.warm("core-1_4", CORE, 4, 1)
    assert made(instead.distilled("core-1_4", CORE, 1), folder) is made(warm, folder) is None
    run(folder.run("full", 1), [look(full=0.1)], {"full": 0.1})
    assert made(instead.distilled("core-1_4", unknown, 1), folder, 1) is None
