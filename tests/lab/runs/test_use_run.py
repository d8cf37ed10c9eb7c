"""A finished run: its levels scored, used to translate, and counted."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from partialsgd.lab.recipes import build
from partialsgd.lab.runs.metrics import evaluation
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import evaluate, open_task, profile, scores_table
from partialsgd.lab.training.errors import WrongCall
from tests.lab.made_runs import made_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", "translation")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "images", "images")


def test_the_network_has_the_weights_of_the_checkpoint_and_not_of_the_start(run: Run) -> None:
    network = open_task(run).network
    start = build(run.settings).network.state_dict()
    assert not network.training
    changed = [name for name, value in network.state_dict().items() if not torch.equal(value, start[name])]
    assert any("fc1" in name for name in changed)


def test_a_run_is_opened_without_those_that_it_started_with_or_learnt_from(tmp_path: Path, run: Run) -> None:
    moved = Run(tmp_path / "moved")
    shutil.copytree(run.path, moved.path)
    said = json.loads((moved.path / "config.json").read_text())
    said["settings"] |= {"start": str(tmp_path / "gone"), "teacher": str(tmp_path / "gone"), "init": "svd"}
    moved.write_json("config.json", said)
    found, expected = (open_task(each).network.state_dict() for each in (moved, run))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run_without_weights_says_how_to_get_them(tmp_path: Path, run: Run) -> None:
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


def text_of(table: Any) -> str:
    page = io.StringIO()
    Console(file=page, width=80).print(table)
    return page.getvalue()


def test_a_table_has_a_row_for_each_number() -> None:
    text = text_of(scores_table({"core": {"BLEU": 12.3456, "loss": 2.0}, "full": {"BLEU": 20.0, "loss": 1.5}}))
    assert [line.replace("│", " ").split() for line in text.splitlines()[3:5]] == [
        ["BLEU", "12.35", "20"],
        ["loss", "2", "1.5"],
    ]


def test_a_profile_has_the_parameters_and_the_work_of_each_level(images: Run) -> None:
    page = io.StringIO()
    profile(images, Console(file=page, width=80))
    text = page.getvalue()
    task = open_task(images)
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("│")}
    for row in task.network.profile(task.example()).rows:
        shown = [cell for cell in rows[row.level] if cell != "│"]
        assert shown[1:3] == [f"{row.parameters:,}", f"{row.share:.1%}"]
        assert shown[3:6] == [f"{n:.3g}" for n in (row.forward, row.training, row.multiply_adds)]
    assert "2×1×8×8" in text and max(map(len, text.splitlines())) <= 80


def test_an_evaluation_is_told_by_level_also_with_a_slash_in_its_name() -> None:
    record = {"t": 3, "valid/core/loss": 1, "valid/1/4/BLEU": 2.5, "valid/core/BLEU": 9.0, "lr": 0.1}
    assert evaluation(record) == {"core": {"loss": 1.0, "BLEU": 9.0}, "1/4": {"BLEU": 2.5}}
