"""The section of the criteria: figures and words where something was measured, and how to measure where not."""

from __future__ import annotations

from pathlib import Path

from partialsgd.lab.page import criteria
from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.markup import Html
from partialsgd.lab.page.stored import read
from tests.lab.page import made, seen


def shown(paths: list[Path]) -> Html:
    runs = read(paths)
    return criteria.shown(runs, Charts(runs))


def test_four_figures_and_the_words_of_each_level(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path)])
    captions = [seen.words(caption) for caption in seen.tree(part).iter("figcaption")]
    assert [caption.split()[0] for caption in captions] == ["c_norm", "c_sim", "c_align", "q"]
    assert seen.titles(part) == ["core", "full"]
    said = [seen.words(term) for term in seen.tree(part).iter("dt")]
    assert said == ["c_norm 2 → 2", "c_sim 1 → 1", "c_align 1.25 → 1.25", "α 0.8 → 0.8", "q 2.5 → 2.5"]
    everything = " ".join(seen.paragraphs(part))
    assert (
        "No bound: at 1 of 8 measured steps the alignment was negative" in everything
        and "steps of plain training" in everything
    )


def test_a_figure_counts_what_its_axis_cannot_show(tmp_path: Path) -> None:
    figures = list(seen.tree(shown([made.run(tmp_path)])).iter("figure"))
    assert "1 negative of 8" in seen.words(figures[2]) and "1 infinite of 8" in seen.words(figures[3])


def test_where_nothing_was_measured_the_option_is_named(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path, measures=False)])
    assert "--measure-every 50" in seen.paragraphs(part)[0] and not list(seen.tree(part).iter("figure"))
    part = shown([made.run(tmp_path, "a"), made.run(tmp_path, "b", measures=False)])
    assert seen.paragraphs(part)[-1] == "Nothing was measured in b."


def test_plain_training_needs_no_figure(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path, levels=["full"], method="plain")])
    assert not list(seen.tree(part).iter("figure")) and seen.titles(part) == ["full"]
