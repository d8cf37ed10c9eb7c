"""Jointly and alone: which runs are made, from which start, and with which budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from partialsgd.lab.recipes.tabular.settings import Tabular

from partialsgd.lab.recipes import build, comparing
from partialsgd.lab.recipes.comparing import alone_at, compare, within
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import open_family
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from tests.lab.toy import Toy

LEVELS = ["core", "full"]


def test_a_smaller_level_alone_is_the_same_family_with_another_method() -> None:
    settings = Images(seed=3, method="slimmable", ratio=("1/4", "1/2"))
    assert alone_at(settings, "1/4", ["1/4", "1/2", "full"]) == replace(settings, method="only('1/4')")


def test_the_whole_network_alone_is_not_nested_where_that_can_be_chosen() -> None:
    assert alone_at(Images(), "full", LEVELS) == Images(nest="none", method="plain")
    assert alone_at(Tabular(), "full", LEVELS) == Tabular(method="only('full')")


def test_what_a_method_does_beside_choosing_levels_is_done_alone_too() -> None:
    settings = Images(method="compose(alternating(lr={'core': 0.5}), sam(rho=0.1))")
    assert alone_at(settings, "core", LEVELS).method == "compose(only('core'), sam(rho=0.1))"
    assert alone_at(settings, "full", LEVELS).method == "sam(rho=0.1)"
    for method in ("sam", "plain", "compose(sam, alternating)", "guarded(alternating)"):
        with pytest.raises(WrongCall, match="cannot be told what a level alone"):
            alone_at(Images(method=method), "core", LEVELS)


def joint(**levels: tuple[int, float]) -> dict[str, Any]:
    return {"levels": {name: {"updates": updates, "flops": flops} for name, (updates, flops) in levels.items()}}


@pytest.mark.usefixtures("toy")
def test_a_budget_is_epochs_or_updates_or_flops() -> None:
    """An epoch of the toy is 7 batches of 4, 5, 4, … points, one FLOP a point at the core and two at full."""
    settings, done = Toy(epochs=2), joint(core=(6, 100.0), full=(8, 208.0))
    assert within(settings, "core", done, "epochs") == settings
    assert within(settings, "core", done, "updates") == replace(settings, max_steps=6)
    per_step = (4 * 4 + 3 * 5) / 7
    steps = round(308 / per_step)
    assert within(settings, "core", done, "flops") == replace(settings, max_steps=steps, epochs=-(-steps // 7))
    two = replace(settings, accumulate=2)
    assert within(two, "full", done, "flops") == replace(two, max_steps=round(308 / (2 * 2 * per_step)), epochs=5)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("budget", ["epochs", "updates", "flops"])
def test_every_level_gets_its_budget(tmp_path: Path, budget: Any) -> None:
    rows = {(row.level, row.trained): row for row in compare(Toy(out=str(tmp_path)), budget=budget)}
    core, full, both = rows["core", "alone"], rows["full", "alone"], rows["all", "jointly"]
    if budget == "epochs":
        assert core.updates == full.updates == both.updates == 14
    elif budget == "updates":
        assert core.updates == rows["core", "jointly"].updates == 7
    else:
        for row in (core, full):
            assert row.flops == pytest.approx(both.flops, abs=10)  # to a step


@pytest.mark.usefixtures("toy")
def test_nothing_outside_the_core_moves_and_the_start_is_that_of_the_joint_run(tmp_path: Path) -> None:
    compare(Toy(out=str(tmp_path), seed=5))
    run = Run.open(tmp_path / "core-alone-seed5")
    start, end = build(run.settings).network, open_family(run, "last")[1]
    joint_start = build(Run.open(tmp_path / "joint-seed5").settings).network
    core = {id(p) for p in end.parameters(level="core")}
    pairs = zip(end.named_parameters(), start.parameters(), strict=True)
    moved = {name for (name, a), b in pairs if not torch.equal(a, b)}
    assert moved and moved <= {name for name, p in end.named_parameters() if id(p) in core}
    for a, b in zip(start.parameters(), joint_start.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("toy")
def test_what_is_finished_is_kept_and_what_is_not_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Toy(out=str(tmp_path))
    first = compare(settings, seeds=2)
    names = [f"{kind}-seed{seed}" for kind in ("core-alone", "full-alone", "joint") for seed in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == names
    calls = []
    monkeypatch.setattr(comparing.loop, "train", lambda settings, show: calls.append(settings.out))
    before = (tmp_path / "compare.json").read_text()
    assert compare(settings, seeds=2) == first and calls == []
    assert (tmp_path / "compare.json").read_text() == before

    (tmp_path / "joint-seed1" / "summary.json").unlink()  # as a kill before the end leaves it
    resume, resumed = loop.resume, []
    monkeypatch.setattr(
        comparing.loop, "resume", lambda run, show: (resumed.append(run.path.name), resume(run, show=show))
    )
    again = compare(settings, seeds=2)
    assert resumed == ["joint-seed1"]
    for old, new in zip(first, again, strict=True):
        assert (old.level, old.scores, old.flops) == (new.level, new.scores, new.flops)


@pytest.mark.usefixtures("toy")
def test_runs_with_other_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    compare(Toy(out=str(tmp_path), epochs=1))
    with pytest.raises(FileExistsError, match="joint-seed0 is a run with other settings; give another --out"):
        compare(Toy(out=str(tmp_path), epochs=2))


def test_one_level_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="--nest none has one level, and nothing to compare it with"):
        compare(Images(out=str(tmp_path / "new"), nest="none"))
    assert not (tmp_path / "new").exists()
