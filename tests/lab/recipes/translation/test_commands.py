"""`partialsgd translate`: a line in, a line out."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.cli import main
from partialsgd.lab.recipes import RECIPES, build
from partialsgd.lab.recipes.translation import commands
from partialsgd.lab.recipes.translation.commands import Translate, read_available_lines, translate_lines
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import open_task
from partialsgd.lab.training.errors import WrongCall
from tests.lab.made_runs import made_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", "translation")


def translated(run: Run, chunks: list[list[str]], **options: Any) -> list[str]:
    return list(translate_lines(Translate(run=run.path, **options), run, chunks))


def test_lines_are_translated_in_order_and_empty_ones_stay(run: Run) -> None:
    built: Any = build(run.settings)
    lines = [source for source, _ in built.corpus.splits["test"]]
    given = [lines[0], "", *lines[1:4]]
    found = translated(run, [given], level="core")
    task: Any = open_task(run)
    with task.network.at("core"):
        expected = [task.translate(task.network.model, [line])[0] for line in given]
    assert found == expected and found[1] == "" and len(set(found)) > 2


def test_the_corpus_is_not_needed_to_translate(tmp_path: Path) -> None:
    """The run keeps its tokenizer: the folder may be gone."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            lines = [f"{language} {split} {k}" for k in range(30)]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    run = made_run(tmp_path / "run", "translation", data=str(folder))
    before = translated(run, [["en test 3"]], level="core")
    for file in folder.iterdir():
        file.unlink()
    assert translated(run, [["en test 3"]], level="core") == before


def test_lines_are_taken_as_they_arrive() -> None:
    """Who writes a line and waits for the answer gets it, whatever was written before."""
    reading, writing = os.pipe()
    found = read_available_lines(reading)
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
        found = list(read_available_lines(file.fileno()))
    assert len(found) > 2 and [line for chunk in found for line in chunk] == lines


def test_wrong_options_and_runs_of_other_recipes_are_refused(run: Run, tmp_path: Path) -> None:
    lines = ["three days ago, in 5 minutes", "7.5 kilometers"]
    assert translated(run, [lines], beam=1) != translated(run, [lines], beam=4), "a beam of one is another search"
    with pytest.raises(WrongCall, match="this run has no level 'tiny'"):
        translated(run, [["a"]], level="tiny")
    with pytest.raises(WrongCall, match="--beam must be at least 1, got 0"):
        translated(run, [["a"]], beam=0)
    with pytest.raises(WrongCall, match="is a run of the recipe images; only runs of translation can translate"):
        translated(Run.new(RECIPES["images"](out=str(tmp_path / "images"))), [["a"]])


def test_text_is_utf_8_whatever_the_terminal_says(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line comes back in capitals here."""
    calls: list[Translate] = []

    def translate(options: Translate, run: Run, chunks: Iterable[list[str]]) -> Iterator[str]:
        calls.append(options)
        for chunk in chunks:
            yield from (line.upper() for line in chunk)

    def answer(data: bytes) -> tuple[int, bytes]:
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        written = io.BytesIO()
        with os.fdopen(read, encoding="ascii") as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            patch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
            return main(["translate", str(run.path)]), written.getvalue()

    monkeypatch.setattr(commands, "translate_lines", translate)
    assert answer("one\n\nfünf".encode()) == (0, "ONE\n\nFÜNF\n".encode())
    assert calls == [Translate(run=run.path, level="full", beam=None, checkpoint="best")]
    assert answer("fünf\n".encode("latin-1")) == (1, b"")
    assert capsys.readouterr().err.startswith("partialsgd: the standard input is not UTF-8: ")


def test_a_tokenizer_that_is_damaged_or_of_another_run_is_named(run: Run, tmp_path: Path) -> None:
    moved = Run(tmp_path / "run")
    shutil.copytree(run.path, moved.path)
    path = moved.path / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    for damaged in (text[:100], text.replace('"Ġ', '"G', 1), "{}"):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match=f"{path} is damaged or from elsewhere: its sha256 is not the one in"):
            translated(moved, [["a"]])
    config = json.loads((moved.path / "config.json").read_text())
    del config["files"]  # of a run from before
    moved.write_json("config.json", config)
    with pytest.raises(ValueError, match=f"{path} is not a tokenizer: .*; restore it from a copy"):
        translated(moved, [["a"]])
    path.unlink()
    with pytest.raises(ValueError, match=f"{path} is missing or damaged"):
        translated(moved, [["a"]])
