"""A finished run: its levels scored, shown, counted, and loaded again."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from partialsgd.export import files
from partialsgd.lab.recipes import build
from partialsgd.lab.runs import use_run
from partialsgd.lab.runs.run import Run, evaluation
from partialsgd.lab.runs.use_run import evaluate, load_weights, open_task, profile, scores_table
from partialsgd.lab.training.errors import WrongCall
from tests.lab import toy as toys
from tests.lab.made_runs import made_run
from tests.lab.toy import Toy, ToyTask, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", "translation")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "images", "images")


def test_the_network_has_the_weights_of_the_checkpoint_and_needs_no_earlier_run(tmp_path: Path, run: Run) -> None:
    network, start = open_task(run).network, build(run.settings).network.state_dict()
    expected = network.state_dict()
    assert not network.training
    assert any("fc1" in name and not torch.equal(value, start[name]) for name, value in expected.items())
    moved = Run(tmp_path / "moved")
    shutil.copytree(run.path, moved.path)
    said = json.loads((moved.path / "config.json").read_text())
    said["settings"] |= {"start": str(tmp_path / "gone"), "teacher": str(tmp_path / "gone"), "init": "svd"}
    moved.write_json("config.json", said)
    found = open_task(moved).network.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    early = Run.new(run.settings.__class__(out=str(tmp_path / "early")))
    with pytest.raises(FileNotFoundError, match=r"no weights yet, .*; partialsgd resume .*early continues"):
        open_task(early)


def test_levels_are_scored_as_the_task_scores_them(images: Run) -> None:
    task = open_task(images)
    assert evaluate(images) == ({level: task.scores(level, "test") for level in ("core", "full")}, None)
    scores, _ = evaluate(images, ["core"], split="valid", checkpoint="last")
    assert scores == {"core": task.scores("core", "valid")}
    with pytest.raises(WrongCall, match="--level: this run has no level 'tiny'; its levels are core, full"):
        evaluate(images, ["tiny"])


def printed(show: Any, *args: Any) -> str:
    page = io.StringIO()
    show(*args, Console(file=page, width=100))
    return page.getvalue()


def rows_of(text: str) -> list[list[str]]:
    return [line.replace("│", " ").split() for line in text.splitlines() if line.startswith("│")]


def test_a_table_has_a_row_for_each_number_and_a_profile_for_each_level(images: Run) -> None:
    table = scores_table({"core": {"BLEU": 12.3456, "loss": 2.0}, "full": {"BLEU": 20.0, "loss": 1.5}})
    text = printed(lambda console: console.print(table))
    assert rows_of(text) == [["BLEU", "12.35", "20"], ["loss", "2", "1.5"]]
    text, task = printed(profile, images), open_task(images)
    for shown, row in zip(rows_of(text), task.network.profile(task.example()).rows, strict=True):
        work = [f"{n:.3g}" for n in (row.forward, row.training, row.multiply_adds)]
        assert shown[:6] == [row.level, f"{row.parameters:,}", f"{row.share:.1%}", *work]
    assert "2×1×8×8" in text


def test_an_evaluation_is_told_by_level_also_with_a_slash_in_its_name() -> None:
    record = {"t": 3, "valid/core/loss": 1, "valid/1/4/BLEU": 2.5, "valid/core/BLEU": 9.0, "lr": 0.1}
    assert evaluation(record) == {"core": {"loss": 1.0, "BLEU": 9.0}, "1/4": {"BLEU": 2.5}}


@pytest.mark.usefixtures("toy")
def test_it_is_the_best_that_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three evaluations is the best, and the network went on from there."""
    scores_in_turn = iter((3.0, 2.0, 1.0))
    monkeypatch.setattr(ToyTask, "selection_score", lambda self, evaluations: next(scores_in_turn))
    run = trained(tmp_path / "a", epochs=3, lr=0.1)
    task = toys.build(Toy())
    scores = {}
    for place in (run.best, run.last):
        load_weights(task.network, place)
        scores[place.name] = {level: task.scores(level, "test") for level in ("core", "full")}
    assert run.summary is not None and scores["best"] != scores["last"]
    assert {level: row["test"] for level, row in run.summary["levels"].items()} == scores["best"]


@pytest.mark.usefixtures("toy")
def test_a_row_says_what_a_level_is_and_took_extras_are_shown_and_another_network_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "a", max_steps=5)
    assert run.summary is not None
    core, full = (run.summary["levels"][level] for level in ("core", "full"))
    assert (core["parameters"], full["parameters"]) == (21, 41)
    assert (core["share"], full["share"]) == (pytest.approx(21 / 41), 1.0)
    assert (core["updates"], full["updates"]) == (2, 3)
    assert (core["flops"], full["flops"]) == (1 * (5 + 5), 2 * (4 + 4 + 4)), "forward and backward, by level"
    samples = [{"source": "one [red]", "core": "eins"}, {"source": "two", "core": "zwei"}]
    extras = {"samples": samples, "signature": "nrefs:1|case:mixed", "notes": ["first", "second"], "empty": []}
    out = printed(use_run.show, {**run.summary, "extras": extras})
    accuracy = f"{full['test']['accuracy']:.4g}"
    assert rows_of(out)[1] == ["full", "41", "100.0%", "3", "24", accuracy, "1", "ms", "(1", "to", "1)"]
    assert "signature: nrefs:1|case:mixed" in out and "notes: first\nnotes: second" in out
    assert "one [red]" in out and "zwei" in out and "samples" in out
    scores = {level: f"{row['test']['accuracy']:.4g}" for level, row in run.summary["levels"].items()}
    expected = (
        "One run gave 2 networks: core has 51% of the parameters of full and reaches accuracy "
        f"{scores['core']}, full {scores['full']}. `partialsgd compare` trains each alone"
    )
    assert expected in " ".join(out.split())
    alone = {"core": {**core, "updates": 0}, "full": full}
    assert use_run.takeaway({**run.summary, "levels": alone}) == ""
    with pytest.raises(ValueError, match="the model given is not the one saved"):
        load_weights(toys.build(Toy(width=12)).network, run.best)
    (run.best / files.WEIGHTS).write_bytes(b"")
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_weights(toys.build(Toy()).network, run.best)
    assert torch.is_grad_enabled()
