"""The curves of a training."""

from __future__ import annotations

from pathlib import Path

from partialsgd.lab.page import training
from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.curves import MOST
from partialsgd.lab.page.markup import Html
from partialsgd.lab.page.stored import read
from tests.lab.page import made, seen


def captions(part: Html) -> list[str]:
    return [seen.words(caption) for caption in seen.tree(part).iter("figcaption")]


def shown(paths: list[Path]) -> Html:
    runs = read(paths)
    return training.shown(runs, Charts(runs))


def test_losses_and_the_score_along_the_training(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path)])
    assert captions(part) == ["Training loss of the batch at each step", "Validation loss", "Validation BLEU"]
    words = [seen.words(description) for description in seen.tree(part).iter("desc")]
    assert "core: BLEU 4.5 at step 9, 19.5 at step 39, highest 19.5 at step 39." in words[2]


def test_points_of_a_long_run_are_said_to_be_means(tmp_path: Path) -> None:
    assert f"{MOST} points at most" in captions(shown([made.run(tmp_path, steps=2 * MOST)]))[0]


def test_each_score_has_a_figure_of_its_own(tmp_path: Path) -> None:
    paths = [made.run(tmp_path, "a"), made.run(tmp_path, "b", score="accuracy")]
    assert captions(shown(paths))[2:] == ["Validation BLEU", "Validation accuracy"]
    runs = read(paths)
    sizes = [caption for part in training.sizes(runs, Charts(runs)) for caption in captions(part)]
    assert sizes == ["BLEU against size on the test data", "Accuracy against size on the test data"]


def test_sizes_are_of_levels_that_were_trained_to_the_end(tmp_path: Path) -> None:
    runs = read([made.run(tmp_path, "only", updates={"core": 9}), made.run(tmp_path, "half", ends=False)])
    (part,) = training.sizes(runs, Charts(runs))
    (said,) = [seen.words(description) for description in seen.tree(part).iter("desc")]
    assert said == "only · core: 1,000 parameters, BLEU 21.5."


def test_sizes_of_several_runs_have_a_legend(tmp_path: Path) -> None:
    runs = read(made.three(tmp_path))
    (part,), (alone,) = (training.sizes(found, Charts(found)) for found in (runs, runs[:1]))
    names = ["joint · core", "joint · full", "core-alone · core", "full-alone · full"]
    assert [seen.words(item) for item in seen.tree(part).iter("li")] == names
    assert not list(seen.tree(alone).iter("li"))


def test_a_run_without_a_step_has_no_figure(tmp_path: Path) -> None:
    path = made.run(tmp_path, ends=False)
    (path / "metrics.jsonl").write_text("")
    assert seen.paragraphs(shown([path])) == ["No step was made yet."]
