"""Where a level is exported to, with what beside it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.made_runs import made_run

from partialsgd.lab.cli import main
from partialsgd.lab.runs.exporting import export_level
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import WrongCall


def test_by_default_it_is_in_the_run_and_another_place_can_be_given(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "images", ratio=("1/4", "1/2"))
    assert export_level(run, "1/4") == run.path / "exports" / "1_4-safetensors"
    assert export_level(run, "full", to=tmp_path / "here") == tmp_path / "here"
    with pytest.raises(WrongCall, match=r"--level: there is no level 'core' in this run; there are 1/4, 1/2, full"):
        export_level(run, "core")


def test_what_has_no_class_in_transformers_is_said(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"--format transformers is for translations, and .* is of images"):
        export_level(made_run(tmp_path / "images", "images"), "full", format="transformers")
    with pytest.raises(
        ValueError, match="the level 'core' cannot be loaded by from_pretrained: no Hugging Face class has low rank"
    ):
        export_level(made_run(tmp_path / "run", "translation"), "core", format="transformers", to=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_the_run_itself_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", "tabular")
    (run.path / "metrics.jsonl").touch()  # which every training has
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    for place in (run.path, run.path / ".." / "run"):
        assert main(["export", str(run.path), "--to", str(place)]) == 2
        said = capsys.readouterr()
        assert f"--to: {place} is a run, and its settings would be lost; give another directory" in said.err
        assert said.out == ""
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert run.path / "config.json" in before and Run.open(run.path).settings == run.settings


def test_neither_is_a_run_of_which_only_the_best_is_left(tmp_path: Path) -> None:
    run, other = made_run(tmp_path / "run", "tabular"), made_run(tmp_path / "other", "tabular", seed=1)
    before = (other.path / "config.json").read_bytes()
    with pytest.raises(WrongCall, match=r"--to: .*other is a run"):
        export_level(run, "core", to=other.path)
    assert (other.path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("translation", {"tokenizer.json"}),
        ("images", {"inputs.json", "network.py"}),
        ("tabular", {"inputs.json"}),
    ],
)
def test_what_using_it_needs_is_beside_it(tmp_path: Path, recipe: str, names: set[str]) -> None:
    place = export_level(made_run(tmp_path / "run", recipe), "full")
    assert {path.name for path in place.iterdir()} == {"README.md", "config.json", "model.safetensors", *names}
