"""The generated part of docs/convergence.md: tables, figures, and sentences made of the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from studies import pages
from studies.convergence import findings, numbers
from studies.convergence.findings import PARTS, PLACES
from studies.convergence.images import IMAGES
from studies.convergence.numbers import C_ALIGN_2, C_NORM_2, C_SIM_2, COSINE, GROUP, NEGATIVE, Spread, spread
from studies.convergence.runs import Runs, is_stored
from studies.convergence.sentences import PAIRS, SENTENCES
from studies.convergence.settings import KEEP, SETTINGS, SWITCHING
from studies.convergence.tasks import Task

QUANTITIES = (C_NORM_2, C_SIM_2, C_ALIGN_2)


def missing(runs: Runs) -> list[str]:
    """The runs that are not stored with today's settings. Seeds are compared one by one, so the page needs all runs."""
    return [
        f"{name}/{seed}"
        for name, setting in SETTINGS.items()
        for seed in setting.task.seeds
        if not is_stored(runs, name, seed, setting.settings)
    ]


def sections(runs: Runs) -> str:
    if left := missing(runs):
        return f"Not trained yet: {', '.join(left)}."
    return "\n\n".join(part(runs) for part in (_dropout, _alternating, _switching))


def _dropout(runs: Runs) -> str:
    head = ("trained", "cosine", f"over {IMAGES.large} examples", "negative", *(q.name for q in QUANTITIES), "accuracy")
    rows = [
        (
            f"{text}, {where}",
            *(spread(runs[name], COSINE, large=large) for large in (False, True)),
            spread(runs[name], NEGATIVE),
            *(spread(runs[name], quantity) for quantity in QUANTITIES),
            numbers.reached(runs[name], "accuracy"),
        )
        for where, names in PLACES.items()
        for name, text in zip(names, ("dropout", "plain"), strict=True)
    ]
    return _section(
        "Dropout: Figures 2 and 3",
        _conditions(IMAGES, runs),
        _table(head, rows),
        _bullets(findings.dropout(runs)),
        _image("dropout_figure_2", f"Criteria 2 and 3 with dropout of neurons of every hidden layer, keep {KEEP}"),
        _image("dropout_figure_3", "The cosine with and without dropout, neurons of every hidden layer"),
        _image("dropout_inner_figure_3", "The same for neurons inside the blocks"),
    )


def _alternating(runs: Runs) -> str:
    names = {"alternating": "period_1", "full steps only": "standard"}
    head = ("trained", "of", *(q.name for q in QUANTITIES), "cosine", f"over {SENTENCES.large} examples", *_LOSSES)
    rows = [
        (
            text,
            of,
            *(spread(runs[name], quantity, group=group) for quantity in (*QUANTITIES, COSINE)),
            spread(runs[name], COSINE, group=group, large=True),
            *(numbers.reached(runs[name], level) for level in ("full", "core")),
        )
        for group, of in PARTS.items()
        for text, name in names.items()
    ]
    return _section(
        "Alternating training: Figure 4",
        _conditions(SENTENCES, runs),
        _table(head, rows),
        _bullets(findings.alternating(runs)),
        _image("alternating_figure_4", "Figure 4: the whole network"),
        _image("alternating_narrowed_figure_4", "The same of the narrowed layers alone"),
    )


_LOSSES = ("loss, full", "loss, core")


def _switching(runs: Runs) -> str:
    parts = [(group, quantity) for group in (None, GROUP) for quantity in (COSINE, C_NORM_2)]
    head = ("switches after", *(f"{quantity.name}, {'narrowed' if group else 'whole'}" for group, quantity in parts))
    rows = [
        (
            SETTINGS[name].period,
            *(spread(runs[name], quantity, group=group, level="core") for group, quantity in parts),
            spread(runs[name], COSINE, level="full"),
            *(numbers.reached(runs[name], level) for level in ("full", "core")),
        )
        for name in SWITCHING
    ]
    standard = (
        "never",
        *["–"] * len(parts),
        spread(runs["standard"], COSINE),
        *(numbers.reached(runs["standard"], level) for level in ("full", "core")),
    )
    return _section(
        "Alignment against the switching period",
        f"So many full steps, then as many of the core; an epoch is {PAIRS // SENTENCES.batch} steps, and `random` "
        "draws the level of each step. Measured before a step of the core, where the criteria matter, unless it says "
        "otherwise. All else is as above.",
        _table((*head, "cosine before a full step", *_LOSSES), [*rows, standard]),
        _bullets(findings.switching(runs)),
        _image("switching", "Cosine and c_norm² of the core against the switching period"),
    )


def _conditions(task: Task, runs: Runs) -> str:
    own = [run for name, setting in SETTINGS.items() if setting.task is task for run in runs[name]]
    seeds = sorted({run.seed for run in own})
    versions = ", ".join(sorted({f"torch {run.torch}, Python {run.python}" for run in own}))
    dates = sorted({run.date for run in own})
    minutes = sum(run.seconds for run in own) / 60
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{task.settings}. Seeds {', '.join(map(str, seeds))}; {versions}; {when}; {len(own)} runs, "
        f"{minutes:.0f} minutes of one core."
    )


def _section(title: str, *parts: str) -> str:
    return "\n\n".join((f"## {title}", *parts))


def _table(head: Sequence[str], rows: Sequence[Sequence[Spread | str]]) -> str:
    return pages.table(head, [list(map(str, row)) for row in rows])


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _image(name: str, text: str) -> str:
    return f"![{text}](figures/{name}.png)\n\n*{text}.*"
