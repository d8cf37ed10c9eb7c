"""The section of configuration: settings that differ come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.lab.page import example_runs
from tests.lab.page.page_parts import rows, section, texts


def preset(recipe: str, settings: Any) -> dict[str, Any]:
    return {**example_runs.SETTINGS, "threads": None, "ratio": ["1/16"], "preset": settings.get("preset")}


def test_settings_that_differ_from_the_preset_come_first(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, lr=0.3, ratio=["1/4", "1/2"], out="/somewhere", threads=2)
    part = section("configuration", [path], preset)
    assert texts(part, "h3") == ["Settings that differ from the preset"]
    assert rows(part) == [["setting", "this run", "preset"], ["lr", "0.3", "0.1"], ["ratio", "1/4 1/2", "1/16"]]
    assert {row[0] for row in rows(part, 1)} >= {"out", "threads", "lr", "seed", "alone"}
    assert rows(part, 2) == [["", "version"], ["torch", "2.13"], ["data (sha256)", "0f" * 32]]
    unchanged = section("configuration", [example_runs.run(tmp_path, "unchanged")], preset)
    assert texts(unchanged, "p") == ["All settings are those of the preset."]


def test_runs_without_a_preset_are_compared_with_each_other(tmp_path: Path) -> None:
    paths = [example_runs.run(tmp_path, "a"), example_runs.run(tmp_path, "b", lr=0.3, seed=1)]
    part = section("configuration", paths)
    assert texts(part, "h3") == ["Settings that differ between the runs"]
    assert rows(part) == [["setting", "a", "b"], ["seed", "0", "1"], ["lr", "0.1", "0.3"]]
    alone = section("configuration", paths[:1])
    assert texts(alone, "h3") == texts(alone, "p") == []


def test_setting_that_another_recipe_lacks_is_no_difference(tmp_path: Path) -> None:
    paths = [example_runs.run(tmp_path, "a", beam=5), example_runs.run(tmp_path, "b", recipe="images", lr=0.3)]
    assert [row[0] for row in rows(section("configuration", paths))] == ["setting", "lr"]


def test_versions_that_differ_have_a_column_for_each_run(tmp_path: Path) -> None:
    a, b = example_runs.run(tmp_path, "a"), example_runs.run(tmp_path, "b")
    (b / "config.json").write_text((b / "config.json").read_text().replace("2.13", "2.6"))
    assert rows(section("configuration", [a, b]), 1)[:2] == [["", "a", "b"], ["torch", "2.13", "2.6"]]
