"""`python -m studies.write`: write the generated blocks of the pages, and their figures, from the stored results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from partialsgd.lab.reproduce import tables
from studies import pages, recipes, reproductions, which_size
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

_SHORT = ("1/32", ("alone", "jointly"))
"""The ratio and the trainings that the README shows."""
_BOTH = ("core", "full")


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


def in_short() -> str:
    """Joint and separate training at the same total cost, and at half of it, for the README."""
    translations = which_size.translations()
    about, collected = translations[0]
    ratio, trainings = _SHORT
    sums = [row for row in collected["sums"] if row["label"] == f"r = {ratio}"]
    head = (
        f"{about['says'].partition(': ')[2]}, r = {ratio}",
        "two runs: validation BLEU",
        "one joint run",
        "difference",
        "difference of the loss",
    )
    rows = [
        (
            row["level"],
            *(tables.spread(row[f"{trained}_scores"].values()) for trained in ("alone", "jointly")),
            *(str(tables.paired_difference(row, name)) for name in ("scores", "losses")),
        )
        for row in sums
    ]
    lower = [tables.paired_difference(row, "losses").mean < 0 for _, each in translations for row in each["sums"]]
    lines = [line for line in collected["lines"] if line["group"] == ratio and line["trained"] in trainings]
    cost = next(row for row in collected["costs"] if row["label"] == f"r = {ratio}")
    scores = {(line["network"], line["trained"]): tables.spread(line["scores"].values()) for line in lines}
    share = cost["joint_flops"] / cost["alone_flops"]
    half = ", ".join(
        f"{network} {scores[network, 'jointly']} and alone {scores[network, 'alone']}" for network in _BOTH
    )
    return (
        f"{pages.table(head, rows)}\n\n"
        "For the same total FLOPs, one joint run reaches a lower validation loss than separate runs for "
        f"{sum(lower)} of {len(lower)} networks, over the ratios by rank and by width that were trained "
        "([results](docs/results.md)); it takes more steps for the same FLOPs, so that the rate, which falls with the "
        "root of the steps, has fallen further, which may be a part of the gain. Half of the cost is not enough: with "
        f"as many epochs, which is {share:.2f} of the FLOPs, the joint networks are behind (test BLEU at r = {ratio}: "
        f"{half}). Means with the deviation over the seeds, differences with their 95 % intervals. "
        "[Which size, and when not](docs/which_size.md)."
    )


BLOCKS: dict[tuple[Path, str], Callable[[], str]] = {
    (RESULTS, "reproductions"): reproductions.sections,
    (RESULTS, "methods"): methods.sections,
    (RESULTS, "recipes"): recipes.sections,
    (CONVERGENCE, "convergence"): lambda: convergence.sections(convergence_runs.stored()),
    (RELIABILITY, "assault"): assault.sections,
    (DISTRIBUTED, "deaths"): deaths.sections,
    (SCALE, "scale"): scale.sections,
    (BUDGETS, "budget"): budget.sections,
    (README, "results"): in_short,
    (WHICH_SIZE, "equal totals"): which_size.equal_totals,
    (WHICH_SIZE, "a line to 0"): worth.sections,
    (WHICH_SIZE, "the paper's regime"): worth.regime_section,
    (WHICH_SIZE, "trained start"): trained_start.sections,
    (WHICH_SIZE, "sizes"): which_size.sizes,
    (WHICH_SIZE, "rates"): which_size.rates,
}
"""The content of each block, by page and name."""


if __name__ == "__main__":
    main()
