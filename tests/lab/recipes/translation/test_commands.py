"""`partialsgd translate`: a line in, a line out."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
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


def test_a_beam_of_one_is_another_search(run: Run) -> None:
    lines = ["three days ago, in 5 minutes", "7.5 kilometers"]
    assert translated(run, [lines], beam=1) != translated(run, [lines], beam=4)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [({"level": "tiny"}, "this run has no level 'tiny'"), ({"beam": 0}, "--beam must be at least 1, got 0")],
)
def test_wrong_options_are_refused(run: Run, options: Any, message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        translated(run, [["a"]], **options)


def test_a_run_of_another_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="is a run of the recipe images; only runs of translation can translate"):
        translated(Run.new(RECIPES["images"](out=str(tmp_path / "images"))), [["a"]])


GiveInput = Callable[[bytes], list[Translate]]


@pytest.fixture
def give_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[GiveInput]:
    """Bytes for the standard input; the options of `translate` are recorded, and every line comes back in capitals."""
    calls: list[Translate] = []

    def translate(options: Translate, run: Run, chunks: Iterable[list[str]]) -> Iterator[str]:
        calls.append(options)
        for chunk in chunks:
            yield from (line.upper() for line in chunk)

    def give(data: bytes) -> list[Translate]:
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        streams.append(os.fdopen(read, encoding="ascii"))
        monkeypatch.setattr(sys, "stdin", streams[-1])
        return calls

    streams: list[Any] = []
    monkeypatch.setattr(commands, "translate_lines", translate)
    yield give
    for stream in streams:
        stream.close()


def test_translate_is_a_line_in_and_a_line_out_by_the_full_level(
    give_input: GiveInput, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = give_input(b"one\n\ntwo")
    assert main(["translate", str(run.path)]) == 0
    assert capsys.readouterr() == ("ONE\n\nTWO\n", "")
    assert calls == [Translate(run=run.path, level="full", beam=None, checkpoint="best")]


def test_text_is_utf_8_whatever_the_terminal_says(
    give_input: GiveInput, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_input("fünf\n".encode())
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["translate", str(run.path)]) == 0
    assert written.getvalue() == "FÜNF\n".encode()


def test_input_that_is_not_utf_8_is_refused(
    give_input: GiveInput, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    give_input("fünf\n".encode("latin-1"))
    assert main(["translate", str(run.path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("partialsgd: the standard input is not UTF-8: ")
