"""Charts: which curves they draw, how they look on the page, and their description in words."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from partialsgd.lab.page import charts, svg
from partialsgd.lab.page.charts import MAX_POINTS, Charts
from partialsgd.lab.page.run_files import read_runs
from partialsgd.logging import figures
from partialsgd.logging.series import Series
from tests.lab.page import example_runs
from tests.lab.page.page_parts import section, texts

PROBE = example_runs.criteria("core", 2, probe="only('core')")
LABELS = ["joint · core", "joint · full", "core-alone · core", "full-alone · full"]


def line_colors(markup: str) -> set[str]:
    return set(re.findall(r"var\(--line-\d\)", markup))


def draw(name: str = "core") -> Figure:
    figure = figures.new_figure(1)
    curves = {svg.plot_label(name): [Series({0: 1.0, 5: 2.0}, negative=(3,))], "b": [Series({0: 1.5})]}
    figures.draw_curves(figure.axes[0], curves, "")
    return figures.finish_figure(figure, None)


def parse(drawing: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(f"<svg>{drawing}</svg>")


def test_curves_are_labelled_by_level_or_probe_and_run_and_a_level_has_one_color(tmp_path: Path) -> None:
    paths = example_runs.three(tmp_path)
    assert list(charts.training_losses(read_runs(paths[:1]))) == ["full", "core"]
    example_runs.write_steps(paths[2], [{**example_runs.step(9, ["full"], 10), "criteria": [PROBE]}])
    runs = read_runs(paths)
    assert sorted(charts.training_losses(runs)) == sorted(LABELS) == sorted(charts.validation_curves(runs, "BLEU"))
    assert Charts(runs).labels == [*LABELS, "full-alone · only('core'), core"]
    drawer = Charts(read_runs(example_runs.three(tmp_path / "colors")))
    third = drawer.lines({LABELS[2]: Series({0: 1.0, 3: 2.0})}, "t", "loss")
    assert line_colors(third.drawing) == set()  # the third color is black, which is currentColor
    fourth = drawer.lines({LABELS[3]: Series({0: 1.0, 3: 2.0})}, "t", "loss")
    assert line_colors(fourth.drawing) == {"var(--line-3)"}
    entries = [(entry.label, entry.color) for entry in drawer.legend([LABELS[3], LABELS[1]])]
    assert entries == [(LABELS[1], "var(--line-1)"), (LABELS[3], "var(--line-3)")]
    assert drawer.legend(LABELS[:1]) == []  # one curve needs no legend


@pytest.mark.parametrize("count", [0, 1, 100, 101, 1000, 12_345])
def test_thinned_curve_keeps_its_mean_and_its_span(count: int) -> None:
    values = {3 * t: float(t) for t in range(count)}
    thin = charts.thin(values)
    assert len(thin) <= MAX_POINTS and list(thin) == sorted(thin)
    assert thin == values if count <= MAX_POINTS else len(thin) > MAX_POINTS / 2
    if count:
        assert min(thin) <= 3 * count / MAX_POINTS + 3 and max(thin) >= 3 * count * (1 - 2 / MAX_POINTS) - 3
    assert all(abs(value - t / 3) <= 1 for t, value in thin.items())


def test_description_names_the_first_the_last_and_the_best_value(tmp_path: Path) -> None:
    drawer = Charts(read_runs([example_runs.run(tmp_path)]))
    curves = {"core": Series({0: 3.0, 5: 1.0, 9: 2.0}), "full": Series({0: math.nan})}
    assert drawer.lines(curves, "t", "loss").description == (
        "core: loss 3 at step 0, 2 at step 9, lowest 1 at step 5. full: no values."
    )
    assert "highest 3 at step 0" in drawer.lines(curves, "t", "BLEU", kind="score").description


def test_training_section_has_losses_and_scores(tmp_path: Path) -> None:
    part = section("training", [example_runs.run(tmp_path)])
    captions = ["Training loss of the batch at each step", "Validation loss", "Validation BLEU"]
    assert texts(part, "figcaption") == captions
    assert "core: BLEU 4.5 at step 9, 19.5 at step 39, highest 19.5 at step 39." in texts(part, "desc")[2]
    long = example_runs.run(tmp_path, "long", steps=2 * MAX_POINTS)
    assert f"at most {MAX_POINTS} points" in texts(section("training", [long]), "figcaption")[0]
    other = example_runs.run(tmp_path, "other", score="accuracy")
    assert texts(section("training", [long, other]), "figcaption")[2:] == ["Validation BLEU", "Validation accuracy"]


def test_size_charts_describe_and_label_the_trained_levels_of_finished_runs_for_each_score(tmp_path: Path) -> None:
    part = section("levels", [example_runs.run(tmp_path)])
    assert texts(part, "figcaption") == ["BLEU against size on the test data"]
    assert texts(part, "desc") == ["core: 1,000 parameters, BLEU 21.5; full: 10,000 parameters, BLEU 30.12."]
    assert {"core", "full", "parameters", "10k"} <= set(texts(part, "text")) and not list(part.iter("li"))
    several = section("levels", example_runs.three(tmp_path / "several"))
    assert texts(several, "li") == LABELS
    assert texts(several, "text").count("core") == texts(several, "text").count("full") == 1  # of one size
    only = example_runs.run(tmp_path, "only", updates={"core": 9})
    half = example_runs.run(tmp_path, "half", ends=False)
    assert texts(section("levels", [only, half]), "desc") == ["only · core: 1,000 parameters, BLEU 21.5."]
    other = example_runs.run(tmp_path, "other", score="accuracy")
    captions = ["BLEU against size on the test data", "Accuracy against size on the test data"]
    assert texts(section("levels", [only, other]), "figcaption") == captions


@pytest.mark.parametrize(
    "name", [example_runs.HOSTILE, "$\\frac$", "_hidden", "日本語", "a\x01b", "x" * 300, "tab\tnew\nline"]
)
def test_any_name_can_be_drawn(name: str) -> None:
    root = parse(svg.convert(draw(name), "f1")[1])
    assert not list(root.iter("script")) and not list(root.iter("img"))
    assert len(svg.plot_label(name)) <= 45 and any("1 negative" in text for text in texts(root, "text"))
