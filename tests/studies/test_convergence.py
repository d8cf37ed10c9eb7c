"""Runs are what they are called, a stored run gives its criteria back, and the page is what the stored runs say."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partialsgd.logging import plot_criteria
from partialsgd.meters.criteria import Criteria
from studies.convergence import __main__ as command
from studies.convergence import figures, images, numbers, page, runs, sentences, train
from studies.convergence.images import IMAGES
from studies.convergence.runs import Run
from studies.convergence.sentences import LONGEST
from studies.convergence.settings import SETTINGS, SWITCHING

ROOT = Path(__file__).parents[2]
GERMAN, ENGLISH = ["Ein Hund rennt.", "Zwei Hunde!", "Ein Mann schläft"], ["A dog runs.", "Two dogs!", "A man sleeps"]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "WIDTH", 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both data sets in their published form, tiny and random."""
    folder = tmp_path_factory.mktemp("data")
    pictures, texts = folder / IMAGES.folder, folder / sentences.SENTENCES.folder
    pictures.mkdir()
    texts.mkdir()
    draw = torch.Generator().manual_seed(0)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = torch.randint(256, (80, 3073), generator=draw, dtype=torch.uint8)
        records[:, 0] %= 10
        (pictures / name).write_bytes(records.numpy().tobytes())
    for part in ("train", "valid"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            with gzip.open(texts / f"{part}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in [*lines * 22, "so " * (LONGEST + 1)]))
    return folder


def run(name: str, seed: int = 0, *, cosine: float = 0.5, c_norm: float = 2.0, level: str | None = None) -> Run:
    """Four measurements of which the last two are the second half; ‖G‖ is 1, and so is ‖p ⊙ G̃‖."""
    cosines = [-0.9, -0.9, cosine - 0.1, cosine + 0.1]
    column = {
        "whole": [1.0] * 4,
        "masked": [1 / c_norm] * 4,
        "shared": [1 / c_norm] * 4,
        "perturbed": [1.0] * 4,
        "inner": [value / c_norm for value in cosines],
    }
    groups = {f"{numbers.GROUP}.{key}": values for key, values in column.items()}
    levels = ["full", "core"] * 2 if name in SWITCHING else [level] * 4
    measured = {"t": [0, 1, 100, 101], "level": levels, "loss": [1.0] * 4, **column, "moved": [3.0] * 4, **groups}
    large = {key: values for key, values in measured.items() if key not in ("level", "loss")}
    reached = {"accuracy": 0.5, "full": 2.0, "core": 3.0}
    return Run(name, seed, SETTINGS[name].settings, measured, large, reached, 60.0, "2030-01-02", "2.0", "3.11")


@pytest.mark.usefixtures("narrow")
def test_what_is_not_trained_is_measured_against_the_very_masks_that_are(data: Path) -> None:
    """At the start both have the same network, batch and mask; later not the same network."""
    plain, dropped = (train.train(name, 1, data, steps=21) for name in ("plain", "dropout"))
    assert plain.measured["t"] == dropped.measured["t"] == [0, 20]
    for key in runs.NORMS:
        first, other = plain.measured[key], dropped.measured[key]
        assert first[0] == other[0] and first[1] != other[1]
    assert plain.large["t"] == [t for t in (10, 14, 15, 19, 21) for _ in range(train.MASKS)]
    assert plain.settings != dropped.settings and 0 <= plain.reached["accuracy"] <= 1


@pytest.mark.usefixtures("narrow")
def test_to_look_over_many_examples_changes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = train.train("dropout_inner", 0, data, steps=21)
    monkeypatch.setattr(train, "EIGHTHS", ())
    alone = train.train("dropout_inner", 0, data, steps=21)
    assert looked.measured == alone.measured and looked.reached == alone.reached
    assert len(looked.large["t"]) == 5 * len(alone.large["t"])


def test_the_core_is_measured_at_full_steps_and_at_its_own(data: Path) -> None:
    found = train.train("period_2", 0, data, steps=6)
    assert list(zip(found.measured["t"], found.measured["level"], strict=True)) == [(0, "full"), (2, "core")]
    whole, narrowed = found.criteria(), found.criteria("narrowed")
    for of_all, of_group in zip(whole, narrowed, strict=True):
        assert of_group.c_norm > of_all.c_norm > 1 and of_group.whole < of_all.whole
    assert set(found.reached) == {"full", "core"}


def test_a_stored_run_gives_its_criteria_back(tmp_path: Path) -> None:
    criteria = Criteria(1.23456789, 0.5, 0.5, 0.75, -0.25, moved=2.0, groups={"narrowed": Criteria(1, 1, 1, 1, 1)})
    row = runs.row(criteria)
    measured = {name: [value] for name, value in {"t": 7, "level": "core", "loss": 1.5, **row}.items()}
    kept = replace(run("standard"), measured=measured)
    kept.save(tmp_path / "runs.jsonl")
    (again,) = runs.stored(tmp_path / "runs.jsonl")["standard"]
    assert again == kept
    assert again.criteria()[0] == replace(criteria, whole=1.23457, groups={})
    (record,) = again.records(["narrowed"])
    assert record["t"] == 7 and record["loss"] == {"core": 1.5}
    assert record["criteria"][0]["cosine"] == pytest.approx(criteria.cosine, rel=1e-5)
    assert plot_criteria({"it": [record]}, figure=3, group="narrowed").axes[0].lines


def test_what_is_stored_with_these_settings_is_not_trained_again() -> None:
    done = run("standard", 1)
    stored = {"standard": [done]}
    assert runs.is_stored(stored, "standard", 1, done.settings)
    assert not runs.is_stored(stored, "standard", 2, done.settings)
    assert not runs.is_stored(stored, "plain", 1, done.settings)
    assert not runs.is_stored(stored, "standard", 1, SETTINGS["standard"].with_steps(3).settings)
    assert len({setting.settings for setting in SETTINGS.values()}) == len(SETTINGS)


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.jsonl"
    monkeypatch.setattr("studies.runs.LOGS", tmp_path / "logs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    call = [sys.executable, "-m", "studies.convergence", "--data", str(data), "--runs", "inner/0"]
    call += ["--steps", "4", "--results", str(file)]
    options: Any = {"cwd": ROOT, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(call, start_new_session=True, **options) as killed:
        while not file.exists() and killed.poll() is None:
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
    before = file.read_text()
    assert before.count("\n") == 1
    command.main(call[3:])
    assert sorted(runs.stored(file)) == ["dropout_inner", "plain_inner"] and before in file.read_text()
    (found,) = runs.stored(file)["dropout_inner"]
    again = train.train("dropout_inner", 0, data, steps=4)
    assert replace(found, seconds=0.0) == replace(again, seconds=0.0)


def test_the_page_needs_all_runs_with_the_settings_of_today() -> None:
    stored = {name: [run(name, seed) for seed in setting.task.seeds] for name, setting in SETTINGS.items()}
    assert "| full steps only | the whole network | 4.000 ± 0.000 |" in page.sections(stored)
    stored["plain"][2] = replace(stored["plain"][2], settings="other")
    assert page.sections(stored) == "Not trained yet: plain/2."


def test_every_figure_of_the_page_can_be_drawn(tmp_path: Path) -> None:
    figures.draw({name: [run(name, seed) for seed in (0, 1)] for name in SETTINGS}, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(figures.FIGURE)
    text = (ROOT / "docs" / "convergence.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(figures/(\w+)\.png\)", text)) == set(figures.FIGURE)
    for name in figures.FIGURE:
        assert 0 < (figures.FIGURES / f"{name}.png").stat().st_size < 80_000


def test_a_wrong_call_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "--data is missing: the folder with cifar-10-batches-bin and multi30k.de-en in it"),
        (["--data", str(tmp_path), "--runs", "nothing"], "no run has nothing in its name; runs are like dropout/0"),
        (["--data", str(tmp_path), "--runs", "standard/0"], "train.de.gz does not exist; --data is the folder with"),
        (["--data", str(tmp_path), "--steps", "5"], "--steps is to try it out: give 2 or more, and with --results"),
        (["--data", str(tmp_path), "--runs", "plain/0"], "data_batch_1.bin does not exist; --data is the folder with"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command.main(arguments)
        assert stopped.value.code == 2 and message in capsys.readouterr().err
