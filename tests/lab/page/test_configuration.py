"""What was said to a run, what differs first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partialsgd.lab.page import configuration
from partialsgd.lab.page.stored import read
from tests.lab.page import made, seen


def usual(recipe: str, settings: Any) -> dict[str, Any]:
    return {**made.SETTINGS, "threads": None, "ratio": ["1/16"], "preset": settings.get("preset")}


def test_what_differs_from_the_preset_comes_first_with_the_presets_value(tmp_path: Path) -> None:
    runs = read([made.run(tmp_path, lr=0.3, ratio=["1/4", "1/2"], out="/somewhere", threads=2)])
    part = configuration.shown(runs, usual)
    assert seen.titles(part) == ["Settings that differ from the preset"]
    assert seen.rows(part) == [
        ["setting", "this run", "preset's"],
        ["lr", "0.3", "0.1"],
        ["ratio", "1/4 1/2", "1/16"],
    ]
    assert {row[0] for row in seen.rows(part, 1)} >= {"out", "threads", "lr", "seed", "alone"}
    assert seen.rows(part, 2) == [["", "version"], ["torch", "2.13"], ["data (sha256)", "0f" * 32]]


def test_without_a_preset_the_runs_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = read([made.run(tmp_path, "a"), made.run(tmp_path, "b", lr=0.3, seed=1)])
    part = configuration.shown(runs, None)
    assert seen.titles(part) == ["Settings that differ between the runs"]
    assert seen.rows(part) == [["setting", "a", "b"], ["seed", "0", "1"], ["lr", "0.1", "0.3"]]
    assert seen.titles(configuration.shown(runs[:1], None)) == []


def test_as_the_preset_has_it_is_said(tmp_path: Path) -> None:
    part = configuration.shown(read([made.run(tmp_path)]), usual)
    assert seen.paragraphs(part) == ["All settings are those of the preset."]


def test_a_setting_that_another_recipe_does_not_have_is_no_difference(tmp_path: Path) -> None:
    runs = read([made.run(tmp_path, "a", beam=5), made.run(tmp_path, "b", recipe="images", lr=0.3)])
    assert [row[0] for row in seen.rows(configuration.shown(runs, None))] == ["setting", "lr"]


def test_versions_that_differ_have_a_column_each(tmp_path: Path) -> None:
    a, b = made.run(tmp_path, "a"), made.run(tmp_path, "b")
    (b / "config.json").write_text((b / "config.json").read_text().replace("2.13", "2.6"))
    assert seen.rows(configuration.shown(read([a, b]), None), 1)[:2] == [["", "a", "b"], ["torch", "2.13", "2.6"]]
