"""`python -m studies.write`: write the generated blocks of the pages, and their figures, from the stored results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from partialsgd.lab.reproduce import numbers, tables
from studies import pages, recipes, reproductions
from studies.assault import page as assault
from studies.convergence import figures as convergence_figures
from studies.convergence import page as convergence
from studies.convergence import runs as convergence_runs
from studies.methods import page as methods

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
README, RESULTS, CONVERGENCE = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "convergence.md"
RELIABILITY = ROOT / "docs" / "reliability.md"

_SHORT = ("1/32", ("alone", "jointly"))
"""The ratio and the trainings that the README shows."""


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    for file in reproductions.stored():
        reproductions.draw(file, FIGURES)
    runs = convergence_runs.stored()
    if not convergence.missing(runs):
        convergence_figures.draw(runs)
    for (page, name), content in BLOCKS.items():
        page.write_text(pages.with_block(page.read_text(encoding="utf-8"), name, content()), encoding="utf-8")


def in_short() -> str:
    """Table 1a at one ratio and the cost of the joint run, for the README."""
    file, about = next((file, about) for file, about in reproductions.stored().items() if about["name"] == "table1a")
    ratio, trainings = _SHORT
    with reproductions.unpacked(file) as (plan, folder):
        collected = numbers.collect(plan, folder)
    lines = [line for line in collected["lines"] if line["group"] == ratio and line["trained"] in trainings]
    rows = [
        (f"{line['network']} {line['trained']}", tables.spread(line["scores"].values()), line["paper"])
        for line in lines
    ]
    cost = next(row for row in collected["costs"] if row["label"] == f"r = {ratio}")
    share = cost["joint_flops"] / cost["alone_flops"]
    head = (f"{about['says'].partition(': ')[2]}, r = {ratio}", "test BLEU (deviation of 3 seeds)", "paper, on IWSLT14")
    return (
        f"{pages.table(head, rows)}\n\nThe joint run took {share:.2f} of the FLOPs of the two separate runs together."
    )


BLOCKS: dict[tuple[Path, str], Callable[[], str]] = {
    (RESULTS, "reproductions"): reproductions.sections,
    (RESULTS, "methods"): methods.sections,
    (RESULTS, "recipes"): recipes.sections,
    (CONVERGENCE, "convergence"): lambda: convergence.sections(convergence_runs.stored()),
    (RELIABILITY, "assault"): assault.sections,
    (README, "results"): in_short,
}
"""The content of each block, by page and name."""


if __name__ == "__main__":
    main()
