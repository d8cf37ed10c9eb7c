"""`partialsgd report`: where the page goes, what is said of a wrong call, and that a real run can be shown."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from pathlib import Path

import pytest

from partialsgd.lab.cli.commands import preset_values
from partialsgd.lab.recipes import RECIPES, presets
from partialsgd.lab.training import loop
from tests.lab.cli import calls
from tests.lab.cli.calls import Call, as_text, require_wrong
from tests.lab.page import example_runs as made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked for."""
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: not asked.append(uri))
    return asked


def test_the_page_is_in_the_first_run_and_its_path_is_printed(call: Call, tmp_path: Path, opened: list[str]) -> None:
    joint, *others = made.three(tmp_path)
    to = joint / "report.html"
    assert call("report", str(joint), *map(str, others)) == (0, f"{to}\n", "")
    assert "<h1>joint, core-alone and full-alone</h1>" in to.read_text(encoding="utf-8") and opened == []


def test_it_goes_where_it_is_told_and_opens_as_a_file(call: Call, tmp_path: Path, opened: list[str]) -> None:
    to = tmp_path / "a page.html"
    assert call("report", str(made.run(tmp_path, measures=False)), "--to", str(to), "--open")[0] == 0
    assert opened == [to.as_uri()] and opened[0].startswith("file://") and "%20" in opened[0]


def test_where_there_is_no_browser_it_is_said(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    path = made.run(tmp_path, ends=False, measures=False)
    code, out, _ = call("report", str(path), "--open")
    assert code == 0 and out.splitlines()[1] == f"no browser was found; open {path / 'report.html'} in one"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["report"], "RUN: give at least one run directory"),
        (["report", "nowhere"], "nowhere is not a run directory: it does not exist"),
        (["report", "."], "is not a run directory: it has no config.json"),
    ],
    ids=as_text,
)
def test_a_wrong_call_names_what_is_wrong(
    call: Call, argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_wrong(call, argv, message)


def test_a_page_cannot_take_the_place_of_a_directory(call: Call, tmp_path: Path) -> None:
    path = made.run(tmp_path, measures=False)
    require_wrong(call, ["report", str(path), "--to", str(tmp_path)], f"{tmp_path} is a directory")


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
