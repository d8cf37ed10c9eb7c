"""One level looks the same in all figures of a page."""

from __future__ import annotations

import re
from pathlib import Path

from partialsgd.lab.page import charts, curves
from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.stored import read
from partialsgd.logging.series import Series
from tests.lab.page import made, seen


def test_a_level_has_its_colour_wherever_it_is_drawn(tmp_path: Path) -> None:
    runs = read(made.three(tmp_path))
    charts = Charts(runs)
    name = "core-alone · core"
    number = curves.names(runs).index(name)
    alone = charts.lines({name: Series({0: 1.0, 3: 2.0})}, "t", "loss")
    assert number == 2 and "var(--line-" not in alone  # the third is black: currentColor
    other = charts.lines({"full-alone · full": Series({0: 1.0, 3: 2.0})}, "t", "loss")
    assert set(re.findall(r"var\(--line-\d\)", other)) == {"var(--line-3)"}
    assert set(re.findall(r"var\(--line-\d\)", charts.legend(["joint · full", "full-alone · full"]))) == {
        "var(--line-1)",
        "var(--line-3)",
    }


def test_a_legend_names_what_is_shown_and_one_line_needs_none(tmp_path: Path) -> None:
    charts = Charts(read(made.three(tmp_path)))
    part = charts.legend(["joint · full", "joint · core"])
    assert [seen.words(item) for item in seen.tree(part).iter("li")] == ["joint · core", "joint · full"]
    assert charts.legend(["joint · core"]) == ""


def test_sizes_are_said_in_words(tmp_path: Path) -> None:
    runs = read([made.run(tmp_path)])
    points = [(level.name, runs[0], level) for level in runs[0].levels]
    drawn = Charts(runs).sizes(points, "BLEU")
    assert "core: 1,000 parameters, BLEU 21.5; full: 10,000 parameters, BLEU 30.12." in drawn
    texts = [seen.words(text) for text in seen.tree(drawn).iter("text")]
    assert {"core", "full", "parameters"} <= set(texts)


def test_levels_of_one_name_and_size_have_one_label_at_the_best_of_them(tmp_path: Path) -> None:
    runs = read(made.three(tmp_path))
    points = [(f"{run.name} · {level.name}", run, level) for run in runs for level in run.levels]
    labels = [seen.words(text) for text in seen.tree(Charts(runs).sizes(points, "BLEU")).iter() if "text" in text.tag]
    assert len(points) > 2 and labels.count("core") == labels.count("full") == 1
    best = max((level.test or {})["BLEU"] for _, _, level in points if level.name == "core")
    size = next(level.parameters for _, _, level in points if level.name == "core")
    assert charts._highest(points, "BLEU")["core", size] == (size, best)


def test_long_names_that_differ_in_the_middle_are_all_drawn(tmp_path: Path) -> None:
    paths = [made.run(tmp_path, f"core-of-a-very-long-name@lr0.00{k}-and-a-long-warm-up-of-it") for k in (3, 6)]
    drawn = Charts(runs := read(paths))
    names = curves.names(runs)
    assert len(names) == 4
    part = drawn.lines({name: Series({0: 1.0 + k, 1: 2.0 + k}) for k, name in enumerate(names)}, "t", "loss")
    assert {"var(--line-0)", "var(--line-1)", "var(--line-3)"} <= set(re.findall(r"var\(--line-\d\)", part))
