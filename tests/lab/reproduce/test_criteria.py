"""Figures 2, 3 and 4: which trainings they take, and what is measured in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import ready
from partialsgd.lab.reproduce.plans import Asked, Scale

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import experiment


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", ["figure2", "figure3", "figure4"])
def test_every_run_is_measured_and_every_curve_is_a_row(name: str, scale: Scale, tmp_path: Path) -> None:
    plan = experiment(name, Asked(scale, "folder" if scale == "paper" else None, seeds=2))
    jobs = ready(plan, Folder(tmp_path))
    assert all(job.settings.measure_every for job in jobs)
    assert plan.figure is not None and f"figure{plan.figure.number}" == name
    assert {job.path.parent.name for job in jobs} == set(plan.figure.curves.values())
    assert [job.settings.seed for job in jobs] == sorted(job.settings.seed for job in jobs)


def test_without_dropout_the_masks_of_dropout_are_measured_all_the_same(tmp_path: Path) -> None:
    jobs = ready(experiment("figure3", Asked(seeds=1)), Folder(tmp_path))
    found = {job.path.parent.name: job.settings for job in jobs}
    assert found["without"].probe == found["dropout"].method and found["without"].method == "plain"
    for settings in found.values():
        assert isinstance(settings, Images) and (settings.norms, settings.nest) == ("none", "none")


def test_at_the_scale_deep_figure_4_has_six_blocks(tmp_path: Path) -> None:
    for scale, layers in (("laptop", 2), ("deep", 6)):
        asked = Asked("deep" if scale == "deep" else "laptop", seeds=1)
        settings = ready(experiment("figure4", asked), Folder(tmp_path))[0].settings
        assert isinstance(settings, Translation) and settings.layers == layers


def test_figure_2_is_of_the_same_run_as_figure_3(tmp_path: Path) -> None:
    second, third = (ready(experiment(name, Asked(seeds=1)), Folder(tmp_path)) for name in ("figure2", "figure3"))
    assert second[0] == third[0]


def test_the_half_width_is_measured_in_both_trainings(tmp_path: Path) -> None:
    jobs = ready(experiment("figure4", Asked("paper", "iwslt", seeds=1)), Folder(tmp_path))
    for job in jobs:
        assert isinstance(job.settings, Translation)
        assert (job.settings.nest, job.settings.ratio, job.settings.probe) == ("width", ("1/2",), "only('core')")
        assert job.settings.d_model == PRESETS["iwslt14"].d_model
    assert [job.settings.method for job in jobs] == ["alternating", "plain"]
