"""What is printed of an experiment's choices is what its runs are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Asked, Scale

from partialsgd.lab.recipes import build
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import EXPERIMENTS, choices, experiment

TABLES = [name for name in EXPERIMENTS if name.startswith("table")]


def told(name: str, scale: Scale, tmp_path: Path, data: str | None = "data") -> str:
    return "\n".join(experiment(name, Asked(scale, data)).choices(Folder(tmp_path)))


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_sizes_and_lengths_are_those_of_the_runs(name: str, scale: Scale, tmp_path: Path) -> None:
    plan, folder = experiment(name, Asked(scale, "data")), Folder(tmp_path)
    text = told(name, scale, tmp_path)
    settings = plan.rows(folder)[0].make(folder, 0)
    assert isinstance(settings, (Images, Translation))
    if isinstance(settings, Images):
        facts = [f"Network {settings.network}, {settings.width} channels", f"{settings.batch} images a batch"]
        assert ("mirror images" in text) == settings.flip
    else:
        facts = [f"width {settings.d_model}", f"{settings.ffn:,} hidden", f"{settings.heads} heads"]
        facts += [f"dropout {settings.dropout:g}", f"vocabulary of {settings.vocabulary:,}"]
        facts += [f"at most {settings.max_tokens:,} pieces", f"{settings.layers} block"]
        facts += ["greedy search" if settings.beam == 1 else f"over {settings.beam} hypotheses"]
    facts.append(f"{settings.max_steps:,} steps" if settings.max_steps else f"{settings.epochs} epochs")
    assert [fact for fact in facts if fact not in text] == []
    assert settings.clip_norm is None and ("not clipped" in text or name in ("figure2", "figure3"))


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", TABLES)
def test_a_grid_is_told_where_there_is_one(name: str, scale: Scale, tmp_path: Path) -> None:
    cells = len(experiment(name, Asked(scale, "data")).grid.cells)
    text = told(name, scale, tmp_path)
    assert (f"tuned over the same {cells} cells" in text) == (cells > 1) == (scale != "paper")
    assert ("for every row." in text) == (cells == 1)
    assert "out of the grid" not in text or cells > 1


def test_how_long_a_cell_is_trained(tmp_path: Path) -> None:
    assert "of 1 epoch instead of 8 epochs" in told("table1a", "laptop", tmp_path)
    assert "of 2 epochs instead of 12 epochs" in told("table3", "laptop", tmp_path)
    assert "of 2 steps instead of 2 epochs" in told("table1a", "smoke", tmp_path)
    assert "0.1, half a cosine" in told("table3", "paper", tmp_path)


def test_which_corpus_figure_4_is_of(tmp_path: Path) -> None:
    assert "here it is IWSLT14's setting." in told("figure4", "paper", tmp_path)
    assert "a smaller network, and the corpus that was given." in told("figure4", "laptop", tmp_path)
    assert "a smaller network, and the embedded corpus." in told("figure4", "laptop", tmp_path, None)


def test_digits_have_epochs_enough_for_the_steps_that_are_told(tmp_path: Path) -> None:
    plan, folder = experiment("figure3", Asked("laptop", seeds=1)), Folder(tmp_path)
    settings = plan.rows(folder)[0].make(folder, 0)
    assert settings is not None and settings.max_steps is not None
    assert f"over {settings.max_steps:,} steps" in told("figure3", "laptop", tmp_path, None)
    assert len(build(settings).batches) * settings.epochs >= settings.max_steps
    assert "The learning rate is 0.001 after a warm-up of 100 steps" in told("figure4", "laptop", tmp_path)


@pytest.mark.parametrize("name", [*TABLES, "figure4"])
def test_what_alternation_leaves_open_is_told_wherever_there_is_one(name: str, tmp_path: Path) -> None:
    said = experiment(name, Asked("laptop", "data")).choices(Folder(tmp_path))
    assert {*choices.OF_ALTERNATION} <= {*said}
    own = [choice for choice in said if choice not in choices.OF_ALTERNATION]
    assert any("first" in choice and "core" in choice for choice in own) == (not name.startswith("table1"))


def test_how_the_rate_falls() -> None:
    assert "falls with the root of the steps" in choices.of_transformer(Translation(schedule="inverse-sqrt"))
    assert "falls along a line to 0" in choices.of_transformer(replace(Translation(), schedule="linear"))
