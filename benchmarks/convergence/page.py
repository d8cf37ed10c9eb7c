"""docs/convergence.md, from what is stored: tables, figures, and sentences that say no more than the numbers do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.convergence import figures, findings, numbers
from benchmarks.convergence.findings import PARTS, PLACES
from benchmarks.convergence.images import IMAGES
from benchmarks.convergence.numbers import C_ALIGN_2, C_NORM_2, C_SIM_2, COSINE, GROUP, NEGATIVE, Spread, spread
from benchmarks.convergence.runs import FOLDER, is_done, stored
from benchmarks.convergence.sentences import PAIRS, SENTENCES
from benchmarks.convergence.settings import KEEP, SETTINGS, SWITCHING
from benchmarks.convergence.tasks import Task

PAGE = Path(__file__).parents[2] / "docs" / "convergence.md"
_BEGIN, _END = "<!-- written by `python -m benchmarks.convergence --write` -->", "<!-- end -->"
QUANTITIES = (C_NORM_2, C_SIM_2, C_ALIGN_2)


def write(folder: Path = FOLDER) -> None:
    PAGE.write_text(in_place(PAGE.read_text(encoding="utf-8"), written(folder)), encoding="utf-8")
    if not missing(folder):
        figures.draw(folder)


def in_place(text: str, between: str) -> str:
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{between}\n{_END}{after}"


def missing(folder: Path = FOLDER) -> list[str]:
    """What is not stored with the settings of today: seeds are compared one by one, so all of them must be there."""
    return [
        f"{name}/{seed}"
        for name, setting in SETTINGS.items()
        for seed in setting.task.seeds
        if not is_done(folder, name, seed, setting.settings)
    ]


def written(folder: Path = FOLDER) -> str:
    if left := missing(folder):
        return f"Not trained yet: {', '.join(left)}."
    return "\n\n".join(part(folder) for part in (_dropout, _alternating, _switching))


def _dropout(folder: Path) -> str:
    head = ("trained", "cosine", f"over {IMAGES.large} examples", "negative", *(q.name for q in QUANTITIES), "accuracy")
    rows = [
        (
            f"{text}, {where}",
            *(spread(name, COSINE, folder, large=large) for large in (False, True)),
            spread(name, NEGATIVE, folder),
            *(spread(name, quantity, folder) for quantity in QUANTITIES),
            numbers.reached(name, "accuracy", folder),
        )
        for where, names in PLACES.items()
        for name, text in zip(names, ("dropout", "plain"), strict=True)
    ]
    return _section(
        "Dropout: Figures 2 and 3",
        _conditions(IMAGES, folder),
        _table(head, rows),
        _bullets(findings.dropout(folder)),
        _image("dropout_figure_2", f"Criteria 2 and 3 with dropout of neurons of every hidden layer, keep {KEEP}"),
        _image("dropout_figure_3", "The cosine with and without dropout, neurons of every hidden layer"),
        _image("dropout_inner_figure_3", "The same for neurons inside the blocks"),
    )


def _alternating(folder: Path) -> str:
    names = {"alternating": "period_1", "full steps only": "standard"}
    head = ("trained", "of", *(q.name for q in QUANTITIES), "cosine", f"over {SENTENCES.large} examples", *_LOSSES)
    rows = [
        (
            text,
            of,
            *(spread(name, quantity, folder, group=group) for quantity in (*QUANTITIES, COSINE)),
            spread(name, COSINE, folder, group=group, large=True),
            *(numbers.reached(name, level, folder) for level in ("full", "core")),
        )
        for group, of in PARTS.items()
        for text, name in names.items()
    ]
    return _section(
        "Alternating training: Figure 4",
        _conditions(SENTENCES, folder),
        _table(head, rows),
        _bullets(findings.alternating(folder)),
        _image("alternating_figure_4", "Figure 4: the whole network"),
        _image("alternating_narrowed_figure_4", "The same of the narrowed layers alone"),
    )


_LOSSES = ("loss, full", "loss, core")


def _switching(folder: Path) -> str:
    parts = [(group, quantity) for group in (None, GROUP) for quantity in (COSINE, C_NORM_2)]
    head = ("switches after", *(f"{quantity.name}, {'narrowed' if group else 'whole'}" for group, quantity in parts))
    rows = [
        (
            SETTINGS[name].period,
            *(spread(name, quantity, folder, group=group, level="core") for group, quantity in parts),
            spread(name, COSINE, folder, level="full"),
            *(numbers.reached(name, level, folder) for level in ("full", "core")),
        )
        for name in SWITCHING
    ]
    standard = (
        "never",
        *["–"] * len(parts),
        spread("standard", COSINE, folder),
        *(numbers.reached("standard", level, folder) for level in ("full", "core")),
    )
    return _section(
        "Alignment against the switching period",
        f"So many full steps, then as many of the core; an epoch is {PAIRS // SENTENCES.batch} steps, and `random` "
        "draws the level of each step. Measured before a step of the core, where the criteria matter, unless it says "
        "otherwise. All else is as above.",
        _table((*head, "cosine before a full step", *_LOSSES), [*rows, standard]),
        _bullets(findings.switching(folder)),
        _image("switching", "Cosine and c_norm² of the core against the switching period"),
    )


def _conditions(task: Task, folder: Path) -> str:
    runs = [run for name, setting in SETTINGS.items() if setting.task is task for run in stored(name, folder)]
    seeds = sorted({run.seed for run in runs})
    versions = ", ".join(sorted({f"torch {run.torch}, Python {run.python}" for run in runs}))
    dates = sorted({run.date for run in runs})
    minutes = sum(run.seconds for run in runs) / 60
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{task.settings}. Seeds {', '.join(map(str, seeds))}; {versions}; {when}; {len(runs)} runs, "
        f"{minutes:.0f} minutes of one core."
    )


def _section(title: str, *parts: str) -> str:
    return "\n\n".join((f"## {title}", *parts))


def _table(head: Sequence[str], rows: Sequence[Sequence[Spread | str]]) -> str:
    lines = [tuple(head), ("---", *["--:"] * (len(head) - 1)), *(tuple(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _image(name: str, text: str) -> str:
    return f"![{text}](figures/{name}.png)\n\n*{text}.*"
