"""The README of an exported level says what it is and how good, and nothing of this machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from tests.lab.made_runs import adult, made_run

from partialsgd.lab.recipes import build
from partialsgd.lab.runs import cards
from partialsgd.lab.runs.exporting import export_level
from partialsgd.lab.runs.run import Run


def test_a_readme_says_how_good_the_level_is(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "tabular")
    assert "| AUC |" not in (export_level(run, "core", to=tmp_path / "early") / "README.md").read_text()
    said = {"AUC": 0.98761, "accuracy": 0.5}
    levels = {"core": {"test": said}, "full": {"test": {"AUC": 0.1}}}
    run.write("summary.json", {"checkpoint": "best", "levels": levels, "extras": {}})
    other = export_level(run, "core", checkpoint="last", to=tmp_path / "last")
    assert "| AUC |" not in (other / "README.md").read_text()  # it was not scored
    text = (export_level(run, "core", to=tmp_path / "late") / "README.md").read_text()
    assert "| AUC | 0.9876 |\n| accuracy | 0.5 |" in text and "0.1 |" not in text
    assert "43.8%" in text.splitlines()[2] and "core, full" in text  # its share, and what it was trained with


def test_a_readme_names_no_place_on_this_machine(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "tabular", data=str(adult(tmp_path / "census")))
    text = (export_level(run, "full") / "README.md").read_text()
    assert "`census`" in text and str(tmp_path) not in text


def said(run: Run, level: str, format: str = "safetensors") -> str:
    task: Any = build(run.settings)
    return cards.card(run, task, level, format, "best")


def test_a_readme_says_which_libraries_it_takes(tmp_path: Path) -> None:
    """Those that its code imports, and no others."""
    for recipe, formats in (
        ("translation", ("safetensors", "onnx", "transformers")),
        ("images", ("safetensors", "onnx")),
        ("tabular", ("safetensors", "onnx")),
    ):
        run = made_run(tmp_path / recipe, recipe)
        for format in formats:
            text = said(run, "full", format)
            (code,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
            nodes = list(ast.walk(ast.parse(code)))
            names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
            imported = {name.partition(".")[0] for name in names} - {"json", "network"}
            (told,) = re.findall("`pip install (.*)`", text)
            torch = {"torch"} if format == "transformers" else set()  # which transformers takes and does not bring
            assert set(told.split()) == imported | torch, (recipe, format)


def test_a_readme_says_how_a_level_was_trained(tmp_path: Path) -> None:
    family = made_run(tmp_path / "family", "translation", method="slimmable")
    network = build(family.settings).network
    core, full = network.size("core"), network.size("full")
    text = said(family, "core")
    assert text.startswith("# translation: core\n\nTranslates en to de; trained on phrases made from the Unicode")
    assert f"{core:,} parameters: {core / full:.1%} of the whole network; trained together" in text
    assert "Method: `slimmable`" in text and f"{full:,} parameters: the whole network;" in said(family, "full")
    alone = made_run(tmp_path / "alone", "translation", nest="none", method="plain")
    size = build(alone.settings).network.size("full")
    assert f" {size:,} parameters. Method: `plain`" in said(alone, "full") and "trained together" not in said(
        alone, "full"
    )


def test_a_core_alone_is_shown_as_the_small_network_that_it_is(tmp_path: Path) -> None:
    """Its layers are two each, as those of a core among others; a whole network alone has none such."""
    two = "a layer of low rank is two"
    told = {alone: said(made_run(tmp_path / alone, "translation", alone=alone), "full") for alone in ("core", "full")}
    assert two in told["core"] and two not in told["full"]
