"""`python -m studies.write`: write the generated blocks of the pages, and their figures, from the stored results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from studies import advice, pages, recipes, reproductions, which_size
from studies.assault import page as assault
from studies.budget import page as budget
from studies.convergence import figures as convergence_figures
from studies.convergence import page as convergence
from studies.convergence import runs as convergence_runs
from studies.deaths import page as deaths
from studies.methods import page as methods
from studies.scale import page as scale
from studies.trained_start import page as trained_start
from studies.worth import page as worth

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
README, RESULTS, CONVERGENCE = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "convergence.md"
DISTRIBUTED, SCALE = ROOT / "docs" / "distributed.md", ROOT / "docs" / "scale.md"
RELIABILITY, WHICH_SIZE = ROOT / "docs" / "reliability.md", ROOT / "docs" / "which_size.md"
BUDGETS = ROOT / "docs" / "budgets.md"


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    for file in reproductions.stored():
        reproductions.draw(file, FIGURES)
    runs = convergence_runs.stored()
    if not convergence.missing(runs):
        convergence_figures.draw(runs)
    scale.draw(FIGURES)
    worth.draw(FIGURES)
    for (page, name), content in BLOCKS.items():
        page.write_text(pages.with_block(page.read_text(encoding="utf-8"), name, content()), encoding="utf-8")


def readme() -> str:
    """The cases, and how many networks the joint runs from scratch make better."""
    return f"{advice.sections()} From scratch: {worth.in_short()} [Every table, and when not](docs/which_size.md)."


BLOCKS: dict[tuple[Path, str], Callable[[], str]] = {
    (RESULTS, "reproductions"): reproductions.sections,
    (RESULTS, "methods"): methods.sections,
    (RESULTS, "recipes"): recipes.sections,
    (CONVERGENCE, "convergence"): lambda: convergence.sections(convergence_runs.stored()),
    (RELIABILITY, "assault"): assault.sections,
    (DISTRIBUTED, "deaths"): deaths.sections,
    (SCALE, "scale"): scale.sections,
    (BUDGETS, "budget"): budget.sections,
    (README, "results"): readme,
    (WHICH_SIZE, "in short"): advice.sections,
    (WHICH_SIZE, "equal totals"): which_size.equal_totals,
    (WHICH_SIZE, "a line to 0"): worth.sections,
    (WHICH_SIZE, "other rates"): worth.other_rates,
    (WHICH_SIZE, "as many parameters, or as fast"): worth.matched,
    (WHICH_SIZE, "the paper's regime"): worth.regime_section,
    (WHICH_SIZE, "trained start"): trained_start.sections,
    (WHICH_SIZE, "sizes"): which_size.sizes,
    (WHICH_SIZE, "rates"): which_size.rates,
}
"""The content of each block, by page and name."""


if __name__ == "__main__":
    main()
