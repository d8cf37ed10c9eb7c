"""Jointly and alone: which runs are made, from which start, and with which budget."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from partialsgd.lab.recipes import build
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import matched
from partialsgd.lab.reproduce.compare import (
    Pair,
    alone_settings,
    compare,
    summarize,
    to_json,
    to_table,
    within_budget,
)
from partialsgd.lab.reproduce.tables import to_markdown, to_rich
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import open_task
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from tests.lab.toy import Toy

LEVELS = ["core", "full"]


def test_a_level_alone_has_what_the_method_does_beside_choosing_levels_and_the_whole_network_is_not_nested() -> None:
    settings = Images(seed=3, method="slimmable", ratio=("1/4", "1/2"))
    assert alone_settings(settings, "1/4", ["1/4", "1/2", "full"]) == replace(settings, method="only('1/4')")
    assert alone_settings(Images(), "full", LEVELS) == Images(nest="none", method="plain")
    assert alone_settings(Toy(), "full", LEVELS) == Toy(method="only('full')")
    settings = Images(method="compose(alternating(lr={'core': 0.5}), sam(rho=0.1))")
    assert alone_settings(settings, "core", LEVELS).method == "compose(only('core'), sam(rho=0.1))"
    assert alone_settings(settings, "full", LEVELS).method == "sam(rho=0.1)"
    for method in ("sam", "plain", "compose(sam, alternating)", "guarded(alternating)"):
        with pytest.raises(WrongCall, match="does not say how to train a level alone"):
            alone_settings(Images(method=method), "core", LEVELS)


def joint(**levels: tuple[int, float]) -> dict[str, Any]:
    return {"levels": {name: {"updates": updates, "flops": flops} for name, (updates, flops) in levels.items()}}


@pytest.mark.usefixtures("toy")
def test_a_budget_is_a_sum_of_flops_or_epochs_or_the_flops_for_each() -> None:
    """An epoch of the toy is 7 batches of 4, 5, 4, … points, one FLOP a point at the core and two at full."""
    settings, done = Toy(epochs=2), joint(core=(6, 100.0), full=(8, 208.0))
    alone: dict[str, Any] = {level: replace(settings, method=f"only('{level}')") for level in LEVELS}
    assert within_budget(alone, done, "epochs") == alone
    per_step = (4 * 4 + 3 * 5) / 7
    expected = {"sum": {"core": 308 / (3 * per_step), "full": 308 / (3 * per_step)}}
    expected["each"] = {"core": 308 / per_step, "full": 308 / (2 * per_step)}
    for budget in ("sum", "each"):
        for level, within in within_budget(alone, done, budget).items():  # type: ignore[arg-type]  # a parameter of the test
            steps = round(expected[budget][level])
            assert within == replace(alone[level], max_steps=steps, epochs=-(-steps // 7)), (budget, level)
    two = {"full": replace(settings, accumulate=2)}
    steps = round(308 / (2 * 2 * per_step))
    assert within_budget(two, done, "each") == {"full": replace(two["full"], max_steps=steps, epochs=5)}


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("budget", ["sum", "epochs", "each"])
@pytest.mark.parametrize("method", ["alternating", "alternating(order=['full', 'full', 'core'])", "slimmable"])
def test_every_level_gets_its_budget(tmp_path: Path, budget: Any, method: str) -> None:
    settings = Toy(out=str(tmp_path), method=method)
    rows = {(row.level, row.trained): row for row in compare(settings, budget=budget)}
    core, full, both = rows["core", "alone"], rows["full", "alone"], rows["all", "jointly"]
    if budget == "sum":
        assert rows["all", "alone"].flops == pytest.approx(both.flops, abs=15)  # to a step of both
        assert core.updates == full.updates
    elif budget == "epochs":
        assert core.updates == full.updates == 14
    else:
        for row in (core, full):
            assert row.flops == pytest.approx(both.flops, abs=10)  # to a step


@pytest.mark.usefixtures("toy")
def test_nothing_outside_the_core_moves_and_the_start_is_that_of_the_joint_run(tmp_path: Path) -> None:
    compare(Toy(out=str(tmp_path), seed=5))
    run = Run.open(tmp_path / "core-alone-seed5")
    start, end = build(run.settings).network, open_task(run, "last").network
    joint_start = build(Run.open(tmp_path / "joint-seed5").settings).network
    core = {id(p) for p in end.parameters(level="core")}
    pairs = zip(end.named_parameters(), start.parameters(), strict=True)
    moved = {name for (name, a), b in pairs if not torch.equal(a, b)}
    assert moved and moved <= {name for name, p in end.named_parameters() if id(p) in core}
    for a, b in zip(start.parameters(), joint_start.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("toy")
def test_what_is_finished_is_kept_and_what_is_not_goes_on(tmp_path: Path) -> None:
    settings = Toy(out=str(tmp_path))
    first = compare(settings, seeds=2)
    names = [f"{kind}-seed{seed}" for kind in ("core-alone", "full-alone", "joint") for seed in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == names
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*") if path.is_file()}
    assert compare(settings, seeds=2) == first
    assert {path: path.read_bytes() for path in before} == before, "nothing is trained again"

    (tmp_path / "joint-seed1" / "summary.json").unlink()  # as a kill before the end leaves it
    again = compare(settings, seeds=2)
    metrics = tmp_path / "joint-seed1" / "metrics.jsonl"
    assert metrics.read_bytes() == before[metrics], "it goes on after the last step"
    for old, new in zip(first, again, strict=True):
        assert (old.level, old.scores, old.flops) == (new.level, new.scores, new.flops)
    with pytest.raises(FileExistsError, match="joint-seed0 is a run with other settings; give another --out"):
        compare(replace(settings, epochs=3))


def test_one_level_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="--nest none has one level, and nothing to compare it with"):
        compare(Images(out=str(tmp_path / "new"), nest="none"))
    assert not (tmp_path / "new").exists()


def test_jobs_are_worker_processes_and_give_the_same_runs(tmp_path: Path) -> None:
    settings = Images(limit=40, width=4, batch=20, epochs=1, threads=1, norms="none")
    here = compare(replace(settings, out=str(tmp_path / "here")))
    workers = compare(replace(settings, out=str(tmp_path / "workers")), jobs=2)
    untimed: Any = {"seconds": None, "latency": None}
    assert [replace(row, **untimed) for row in here] == [replace(row, **untimed) for row in workers]
    assert sorted(path.name for path in (tmp_path / "workers" / "logs").iterdir()) == ["worker0.log", "worker1.log"]


def summary(seconds: float, **scores: float) -> dict[str, Any]:
    known = {"updates": 10, "flops": 100.0, "parameters": 5000, "latency": 0.002}
    rows = {level: {**known, "test": {"accuracy": score}} for level, score in scores.items()}
    return {"recipe": "images", "score": "accuracy", "seconds": seconds, "levels": rows}


PAIRS = [
    Pair(0, summary(8, core=0.5, full=0.8), {"core": summary(3, core=0.6, full=0.0), "full": summary(7, full=0.9)}),
    Pair(1, summary(10, core=0.7, full=0.8), {"core": summary(5, core=0.6, full=0.0), "full": summary(7, full=0.7)}),
]


def test_a_row_is_the_mean_over_the_seeds_of_the_right_runs() -> None:
    rows = {(row.level, row.trained): row for row in summarize(PAIRS)}
    assert rows["core", "jointly"].scores == (0.5, 0.7) and rows["core", "alone"].scores == (0.6, 0.6)
    assert rows["full", "alone"].scores == (0.9, 0.7) and rows["full", "alone"].seconds == 7
    assert rows["core", "alone"].seconds == 4 and rows["core", "jointly"].seconds is None
    total, separately = rows["all", "jointly"], rows["all", "alone"]
    assert (total.updates, total.flops, total.seconds, total.scores) == (20, 200.0, 9, ())
    assert (separately.updates, separately.flops, separately.seconds) == (20, 200.0, 11)


def test_the_table_says_the_budget_and_the_seeds_in_markdown_in_the_terminal_and_in_a_file() -> None:
    table = to_table(summarize(PAIRS), PAIRS, "epochs")
    text = to_markdown(table)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    head = ["level", "trained", "accuracy", "updates", "training FLOPs", "time", "parameters", "ms"]
    assert lines[0] == head
    assert lines[2] == ["core", "jointly", "0.6 ± 0.14", "10", "100", "", "5,000", "2"]
    assert lines[-1] == ["all", "alone", "", "20", "200", "11 s", "", ""]
    page = io.StringIO()
    Console(file=page, width=80).print(to_rich(table))
    shown = [[cell.strip() for cell in row.split("│")[1:-1]] for row in page.getvalue().splitlines()]
    assert all(line in shown for line in lines[2:])
    assert table.title == "images: jointly and alone; each level alone has the epochs of the joint run"
    assert table.note.startswith("accuracy on the test data, seeds 0, 1; means ± deviations of 2 runs. ")
    assert "Jointly less alone: core +0 ± 1.3; full +0 ± 1.3. " in table.note
    assert "This answers: How much do I lose if I pay for one run" in table.note
    table = to_table(summarize(PAIRS[1:]), PAIRS[1:], "each")
    assert table.title.endswith("each level alone has all FLOPs of the joint run")
    assert "data, seed 1. Jointly less alone: core +0.1 (one seed); full +0.1 (one seed). " in table.note
    assert "for the same total cost?" in to_table(summarize(PAIRS), PAIRS, "sum").note
    stored = json.loads(json.dumps(to_json(summarize(PAIRS), PAIRS, "sum")))
    assert (stored["budget"], stored["seeds"], stored["score"]) == ("sum", [0, 1], "accuracy")
    assert stored["rows"][0]["scores"] == [0.5, 0.7]


SMALL = Images(limit=40, width=8, batch=20, epochs=2, threads=1, norms="none")


def test_a_smaller_level_stands_beside_an_ordinary_network_of_as_many_parameters(tmp_path: Path) -> None:
    settings = replace(SMALL, out=str(tmp_path))
    rows = {(row.level, row.trained): row for row in compare(settings, match=("parameters",))}
    rival, core = rows["core", "as large"], rows["core", "alone"]
    assert rival.parameters is not None and core.parameters is not None
    counts = {width: build(replace(settings, nest="none", width=width)).network.size("full") for width in range(1, 8)}
    nearest = min(counts, key=lambda width: abs(counts[width] - core.parameters))  # type: ignore[operator]  # asserted
    assert rival.parameters == counts[nearest]
    assert rival.updates == core.updates
    assert Run.open(tmp_path / "as-large-as-core-seed0").settings.width == nearest  # type: ignore[attr-defined]  # Images
    assert rows["all", "alone"].flops == core.flops + rows["full", "alone"].flops, "it is no part of the sum"
    assert (
        f"The ordinary network that is as large as core has width {nearest}." in (tmp_path / "compare.md").read_text()
    )


@pytest.mark.parametrize(
    ("least_slower", "size", "sentence"),
    [
        (9, {}, "The whole network itself is as fast as core."),
        (5, {"width": 4}, "The ordinary network that is as fast as core has width 4."),
        (1, None, "No ordinary network is as fast as core."),
    ],
)
def test_the_largest_network_that_is_as_fast_is_chosen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_slower: int, size: Any, sentence: str
) -> None:
    """Latencies differ from call to call, so a test says which networks are slower, and the choice is kept."""
    monkeypatch.setattr(matched, "is_slower", lambda ordinary, task, level: ordinary.settings.width >= least_slower)
    settings = replace(SMALL, out=str(tmp_path), epochs=1)
    first = compare(settings, match=("latency", "parameters"))
    assert ("as fast" in [row.trained for row in first]) is bool(size)
    assert sentence in (tmp_path / "compare.md").read_text()
    assert json.loads((tmp_path / "matched.json").read_text())["latency"] == {"core": size}
    monkeypatch.setattr(matched, "is_slower", lambda ordinary, task, level: ordinary.settings.width >= 7)
    assert compare(settings, match=("latency", "parameters")) == first
    stored = json.loads((tmp_path / "matched.json").read_text())
    del stored["settings"]["full"]  # a file of before this setting
    (tmp_path / "matched.json").write_text(json.dumps(stored))
    assert compare(settings, match=("latency", "parameters")) == first
    with pytest.raises(AlreadyThere, match=r"matched.json is for other settings; give another --out, or remove it"):
        compare(replace(settings, width=16), match=("latency",))


def test_a_network_of_32_times_the_width_is_slower() -> None:
    small, large = (build(replace(SMALL, width=width)) for width in (2, 64))
    assert matched.is_slower(large, small, "core") and not matched.is_slower(small, large, "full")


def test_networks_that_begin_with_another_run_are_not_matched(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="--match compares networks from scratch"):
        compare(Translation(out=str(tmp_path / "new"), start="runs/whole", init="svd"), match=("parameters",))
    assert not (tmp_path / "new").exists()


def test_the_whole_network_alone_needs_no_budget_of_sizes() -> None:
    settings = Images(nest="low-rank", level_budget="parameters=1/4", full="own")
    alone: Any = alone_settings(settings, "full", LEVELS)
    assert (alone.nest, alone.level_budget, alone.full) == ("none", None, "sum")


@pytest.mark.usefixtures("toy")
def test_a_recipe_without_ordinary_networks_refuses_to_match_them(tmp_path: Path) -> None:
    with pytest.raises(
        WrongCall, match="--match needs smaller ordinary networks, and with these settings toy has none; omit it"
    ):
        compare(Toy(out=str(tmp_path / "new")), match=("parameters",))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("settings", [Images(), Translation()], ids=["images", "translation"])
def test_ordinary_sizes_are_valid_settings_and_grow_up_to_the_whole_network(settings: Images | Translation) -> None:
    sizes = [replace(settings, **size) for size in settings.ordinary_sizes()]
    widths = [getattr(size, "width", None) or getattr(size, "d_model", 0) for size in (*sizes, settings)]
    assert len(sizes) > 3 and widths == sorted(set(widths))
