"""Commands on runs, methods, reports and experiments: what they print and refuse."""

from __future__ import annotations

import re
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from partialsgd import methods
from partialsgd.lab.cli.commands import Reproduce, _summarise
from partialsgd.lab.recipes import RECIPES, preset_values, presets
from partialsgd.lab.reproduce import EXPERIMENTS, Scale
from partialsgd.lab.training import loop, method_text
from tests.lab.cli import calls
from tests.lab.cli.calls import Call, as_text, require_wrong
from tests.lab.page import example_runs as made


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["methods", "adma"], "there is no method 'adma'"),
        (["evaluate"], "RUN"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["evaluate", "runs", "--split", "train"], "--split"),
        (["report"], "RUN: give at least one run directory"),
        (["report", "nowhere"], "nowhere is not a run directory: it does not exist"),
        (["report", "."], "is not a run directory: it has no config.json"),
        (["reproduce"], "NAME"),
        (["reproduce", "table7"], "table7"),
        (["reproduce", "table1a", "--scale", "huge"], "--scale"),
        (["reproduce", "table1a", "--seeds", "0"], "--seeds must be from 1 to 10,000, got 0"),
        (["reproduce", "table1a", "--epochs", "0"], "--epochs must be from 1 to 10,000, got 0"),
        (["reproduce", "table1a", "--jobs", "99999999"], "--jobs must be from 1 to 10,000, got 99999999"),
        (["reproduce", "table3", "--rows", "tabel"], "has no such row; it has alternating, slimmable"),
    ],
    ids=as_text,
)
def test_a_wrong_call_names_what_is_wrong(
    call: Call, argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_wrong(call, argv, message)


def test_methods_are_listed_and_one_is_told_as_wide_as_the_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = call("methods")
    assert max(map(len, out.splitlines())) <= 80
    for name, summary in methods.SUMMARIES.items():
        assert f"{name} {summary}" in re.sub(r"\s+", " ", out)
    long = max(methods.SUMMARIES, key=lambda name: len(method_text.signature(name)))
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert call("methods", long) == (0, method_text.describe_method(long, width) + "\n", "")
    assert method_text.describe_method(long, 200) != method_text.describe_method(long, 80)


def test_a_page_is_in_the_first_run_or_where_it_is_told_to_be_and_opens_as_a_file(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: not opened.append(uri))
    joint, *others = made.three(tmp_path)
    assert call("report", str(joint), *map(str, others)) == (0, f"{joint / 'report.html'}\n", "")
    assert "<h1>joint, core-alone and full-alone</h1>" in (joint / "report.html").read_text(encoding="utf-8")
    to = tmp_path / "a page.html"
    assert opened == [] and call("report", str(joint), "--to", str(to), "--open")[0] == 0
    assert opened == [to.as_uri()] and opened[0].startswith("file://") and "%20" in opened[0]
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    _, out, _ = call("report", str(joint), "--open")
    assert out.splitlines()[1] == f"no browser was found; open {joint / 'report.html'} in one"
    require_wrong(call, ["report", str(joint), "--to", str(tmp_path)], f"{tmp_path} is a directory")


@pytest.mark.parametrize("recipe", calls.RECIPES)
def test_what_is_usual_is_the_preset(recipe: str) -> None:
    for name, preset in presets(recipe).items():
        assert preset_values(recipe, {"preset": name}) == asdict(preset)
    assert preset_values("another", {}) == {}


def test_a_real_run_is_shown_with_what_was_said_to_it(call: Call, tmp_path: Path) -> None:
    """The files are those that a training writes today, not those that a test thinks it does."""
    settings = RECIPES["images"](out=str(tmp_path / "run"), max_steps=12, measure_every=2, threads=1)
    run = loop.train(settings, show=False)
    assert call("report", str(run.path))[0] == 0
    text = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Settings that differ from the preset" in text and text.count("<figure>") == 8
    assert "core" in text and "Core and full on the test images" in text


def test_every_experiment_and_scale_is_offered() -> None:
    hints = get_type_hints(Reproduce)
    assert list(get_args(hints["name"])) == list(EXPERIMENTS)
    assert get_args(hints["scale"]) == get_args(Scale)


def test_what_was_never_begun_is_not_shown(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    require_wrong(call, ["reproduce", "table3", "--show", "--out", str(out)], "nothing has no finished run of table3")
    assert not out.exists()


def test_a_reason_that_many_runs_share_is_told_once() -> None:
    said = _summarise(["a, seed 0: no file; see x", "a, seed 1: no file; see x", "b: no memory"])
    assert said == "a, seed 0 and 1 more: no file; see x; b: no memory"


PAGE = Path(__file__).parents[3] / "docs" / "errors.md"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tarin"], "there is no command 'tarin'; did you mean train?"),
        (["train", "--out", "RUN"], "RUN exists (it is not empty); give another --out"),
        (["train", "--data", "…"], "there is no folder …: give one with train.en, train.de and so on"),
        (["report", "MISSING"], "RUN is not a run directory: it does not exist"),
    ],
)
def test_the_page_shows_what_a_wrong_call_prints(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "notes.txt").touch()
    assert f"| {message} |" in PAGE.read_text(encoding="utf-8")
    require_wrong(call, argv, message.replace("RUN is not", "MISSING is not").replace("…:", f"{tmp_path / '…'}:"))
