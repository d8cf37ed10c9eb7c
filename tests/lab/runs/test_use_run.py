"""A finished run: its levels scored, used to translate, and counted."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.lab.made_runs import made_run

from partialsgd.lab.recipes import build
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import arriving, evaluate, open_family, profile, scores_table, translate
from partialsgd.lab.training.errors import WrongCall


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", "translation")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "images", "images")


def test_the_network_has_the_weights_of_the_checkpoint_and_not_of_the_start(run: Run) -> None:
    task, network = open_family(run)
    start = build(run.settings).network.state_dict()
    assert task.network is network and not network.training
    changed = [name for name, value in network.state_dict().items() if not torch.equal(value, start[name])]
    assert any("fc1" in name for name in changed)


def test_a_run_is_opened_without_those_that_it_started_with_or_learnt_from(tmp_path: Path, run: Run) -> None:
    moved = Run(tmp_path / "moved")
    shutil.copytree(run.path, moved.path)
    said = json.loads((moved.path / "config.json").read_text())
    said["settings"] |= {"start": str(tmp_path / "gone"), "teacher": str(tmp_path / "gone"), "init": "svd"}
    moved.write("config.json", said)
    found, expected = (open_family(each)[1].state_dict() for each in (moved, run))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run_without_weights_says_how_to_get_them(tmp_path: Path, run: Run) -> None:
    early = Run.new(run.settings.__class__(out=str(tmp_path / "early")))
    with pytest.raises(FileNotFoundError, match=r"no weights yet, .*: partialsgd resume .*early goes on"):
        open_family(early)


def test_levels_are_scored_as_the_task_scores_them(images: Run) -> None:
    task, _ = open_family(images)
    found = evaluate(images)
    assert found == {level: task.scores(level, "test") for level in ("core", "full")}
    assert evaluate(images, ["core"], split="valid", checkpoint="last") == {"core": task.scores("core", "valid")}
    with pytest.raises(WrongCall, match="--level: there is no level 'tiny' in this run; there are core, full"):
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


def test_lines_are_translated_in_order_and_empty_ones_stay(run: Run) -> None:
    built: Any = build(run.settings)
    lines = [source for source, _ in built.corpus.splits["test"]]
    given = [lines[0], "", *lines[1:4]]
    found = list(translate(run, [given], "core"))
    task: Any = open_family(run)[0]
    with task.network.at("core"):
        expected = [task.translate(task.network.model, [line])[0] for line in given]
    assert found == expected and found[1] == "" and len(set(found)) > 2


def test_a_beam_of_one_is_another_search(run: Run) -> None:
    lines = ["three days ago, in 5 minutes", "7.5 kilometers"]
    assert list(translate(run, [lines], "full", beam=1)) != list(translate(run, [lines], "full", beam=4))


def test_the_corpus_is_not_needed_to_translate(tmp_path: Path) -> None:
    """The run keeps its tokenizer: the folder may be gone."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            lines = [f"{language} {split} {k}" for k in range(30)]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    run = made_run(tmp_path / "run", "translation", data=str(folder))
    before = list(translate(run, [["en test 3"]], "core"))
    for file in folder.iterdir():
        file.unlink()
    assert list(translate(run, [["en test 3"]], "core")) == before


def test_lines_are_taken_as_they_arrive() -> None:
    """Who writes a line and waits for the answer gets it, whatever was written before."""
    reading, writing = os.pipe()
    found = arriving(reading)
    for text, lines in (("one\n", ["one"]), ("two\nthree\r\nfo", ["two", "three"]), ("ür\n", ["foür"])):
        os.write(writing, text.encode())
        assert next(found) == lines
    os.write(writing, "ä".encode()[:1])
    os.write(writing, "ä".encode()[1:])
    os.close(writing)
    assert list(found) == [["ä"]]
    os.close(reading)


def test_a_long_text_comes_in_pieces_and_keeps_every_line(tmp_path: Path) -> None:
    lines = [f"line {k}" for k in range(5000)]
    (tmp_path / "text").write_text("\n".join(lines))
    with (tmp_path / "text").open("rb") as file:
        found = list(arriving(file.fileno()))
    assert len(found) > 2 and [line for chunk in found for line in chunk] == lines


def test_what_cannot_translate_says_so(run: Run, images: Run) -> None:
    for wrong, message in (
        (lambda: translate(images, ["a"], "core"), "of the recipe images, and only translation translates"),
        (lambda: translate(run, ["a"], "tiny"), "there is no level 'tiny'"),
        (lambda: translate(run, ["a"], "core", beam=0), "--beam must be at least 1, got 0"),
    ):
        with pytest.raises(WrongCall, match=message):
            list(wrong())


def test_a_profile_has_the_parameters_and_the_work_of_each_level(images: Run) -> None:
    page = io.StringIO()
    profile(images, Console(file=page, width=80))
    text = page.getvalue()
    _, network = open_family(images)
    task: Any = open_family(images)[0]
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("│")}
    for row in network.profile(task.example()).rows:
        shown = [cell for cell in rows[row.level] if cell != "│"]
        assert shown[1:3] == [f"{row.parameters:,}", f"{row.share:.1%}"]
        assert shown[3:6] == [f"{n:.3g}" for n in (row.forward, row.training, row.multiply_adds)]
    assert "2×1×8×8" in text and max(map(len, text.splitlines())) <= 80
