"""An experiment's numbers as tables, as a page of Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean, stdev
from typing import Any

from partialsgd.lab.reproduce import reading
from partialsgd.lab.reproduce.layout import Table, as_markdown
from partialsgd.lab.reproduce.numbers import NEAR, Found

_NONE = "–"
_OUTCOMES = ("scores", "equal_flops", "diverged", "equal_flops_diverged")
_MEASURED = ("c_norm²", "c_sim²", "c_align²", "cosine")
_SHARED = "full"
"""The row that stands in every group, and makes none by itself."""


def tables(found: Found) -> list[Table]:
    """The paper's table first, then what it took, and how it was tuned; those without a number are left out."""
    if found["criteria"]:
        return [_criteria(found)]
    every = [_main(found), _epochs(found), _costs(found), _near(found), _starts(found), _grid(found), _elsewhere(found)]
    return [table for table in every if table.rows]


def markdown(found: Found) -> str:
    first, *more = [as_markdown(table) for table in tables(found)] or [""]
    parts = [f"# {found['title']}", first, in_words(found), *more, choices(found), made_with(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_words(found: Found) -> str:
    return "\n".join(f"- {sentence}" for sentence in reading.sentences(found))


def choices(found: Found) -> str:
    return "\n".join(["## Choices that the paper leaves open", "", *(f"- {choice}" for choice in found["choices"])])


def made_with(found: Found) -> str:
    """The libraries of the runs; one line each where they differ."""
    lines = [", ".join(f"{name} {version}" for name, version in each.items()) for each in found["versions"]]
    return "\n".join(f"Made with {line}." for line in [*lines, *(f"sacrebleu's {each}" for each in found["signature"])])


def as_csv(found: Found) -> str:
    """The lines of the paper's table, or the criteria of a figure, with a row for each seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(_criteria_cells(found) if found["criteria"] else _line_cells(found))
    return text.getvalue()


def _line_cells(found: Found) -> Iterator[list[Any]]:
    costs = ("parameters", "epoch_flops", "epoch_seconds")
    gone = ("diverged", "equal_flops_diverged")
    heads = ("seed", found["score"], "at equal FLOPs", "diverged", "diverged at equal FLOPs")
    yield ["ratio", "network", "trained", "paper", *heads, *costs]
    for line in found["lines"]:
        only_diverged = [""] if any(line[key] for key in gone) else []
        for seed in sorted({*line["scores"], *line["equal_flops"]}, key=int) or only_diverged:
            scores = (line[key].get(seed, "") for key in ("scores", "equal_flops"))
            rest = ("" if line[key] is None else line[key] for key in (*gone, *costs))
            yield [*_words(line), line["paper"] or "", seed, *scores, *rest]


def _criteria_cells(found: Found) -> Iterator[list[Any]]:
    keys = (*_MEASURED, "negative")
    yield ["trained", "of", "seed", *keys]
    for row in found["criteria"]:
        for seed, *values in zip(row["seeds"], *(row[key] for key in keys), strict=True):
            yield [row["curve"], row["of"], seed, *("" if value is None else value for value in values)]


def spread(values: Iterable[float | None]) -> str:
    """The mean, and in brackets the deviation of the sample, as the paper prints them."""
    values = list(values)
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "no bound" if values else _NONE
    return f"{fmean(known):.2f}" + (f" ({stdev(known):.2f})" if len(known) > 1 else "")


def _shown(found: Found) -> list[Mapping[str, Any]]:
    """Lines with something to show, of the groups that have more than the row which stands in all of them."""
    known = [line for line in found["lines"] if any(line[key] for key in _OUTCOMES)]
    groups = {line["group"] for line in known if line["row"] != _SHARED} or {line["group"] for line in known[:1]}
    return [line for line in known if line["group"] in groups]


def _main(found: Found) -> Table:
    lines = _shown(found)
    seeds = max((len(line[key]) for line in lines for key in ("scores", "equal_flops")), default=0)
    is_equal = any(line["equal_flops"] not in ({}, line["scores"]) or line["equal_flops_diverged"] for line in lines)
    equal = [(_ours(line["equal_flops"], line["equal_flops_diverged"], seeds),) if is_equal else () for line in lines]
    rows = tuple(
        (*_words(line), line["paper"] or _NONE, _ours(line["scores"], line["diverged"], seeds), *more)
        for line, more in zip(lines, equal, strict=True)
    )
    head = ("r", "network", "trained", "paper", "ours", *(("at equal FLOPs",) if is_equal else ()))
    ours = "alternating training" if any(line["trained"] == "alternating" for line in lines) else "the joint run"
    note = (
        f"{found['score']} on the test data: mean (deviation) of {seeds} seed{'s' * (seeds > 1)}, unless told. "
        "The paper's is of its own data and sizes."
    ) + (f" At equal FLOPs: with as many training FLOPs as {ours}." if is_equal else "")
    return Table("Beside the paper", head, rows, words=3, note=note)


def _epochs(found: Found) -> Table:
    """What an epoch takes; where the paper prints FLOPs, these and ours as it counts them."""
    lines = [line for line in _shown(found) if line["scores"]]
    is_printed = any(line["paper_epoch_flops"] for line in lines)
    more = ("FLOPs, paper", "ours, as it counts") if is_printed else ()
    rows = tuple(
        (
            *_words(line),
            f"{line['parameters']:,.0f}",
            _flops(line["epoch_flops"]),
            *((_flops(line["paper_epoch_flops"]), _flops(line["as_the_paper_counts"])) if is_printed else ()),
            f"{line['epoch_seconds']:,.3g} s",
        )
        for line in lines
    )
    head = ("r", "network", "trained", "parameters", "FLOPs", *more, "time")
    note = (
        "Of the run that trains the network: FLOPs of forward and backward passes, as torch counts them, and the time "
        "of its steps, without evaluations, with whatever ran beside it on the machine."
    )
    return Table("Sizes, and what an epoch of training takes", head, rows, words=3, note=note)


def _words(line: Mapping[str, Any]) -> tuple[str, str, str]:
    return line["group"], line["network"], line["trained"]


def _ours(scores: Mapping[str, float], diverged: int, seeds: int) -> str:
    """A mean of fewer seeds than other lines have says so."""
    few = f", {len(scores)} seed{'s' * (len(scores) > 1)}" if 0 < len(scores) < seeds else ""
    return spread(scores.values()) + few + (f", {diverged} diverged" if diverged else "")


def _criteria(found: Found) -> Table:
    scores = {line["row"]: spread(line["scores"].values()) for line in found["lines"]}
    of = ("of",) if any(row["of"] != "network" for row in found["criteria"]) else ()
    rows = tuple(
        (
            *(row[key] for key in ("curve", *of)),
            *(spread(row[key]) for key in _MEASURED),
            f"{fmean(row['negative']):.0%}",
            scores[row["row"]],
        )
        for row in found["criteria"]
    )
    note = (
        "Medians, of the cosine the mean, over the second half of each training; mean (deviation) of the seeds. "
        f"< 0: how often the cosine is negative. {found['score']}: of the whole network on the test data."
    )
    head = ("trained", *of, *_MEASURED, "< 0", found["score"])
    return Table("The criteria", head, rows, words=1 + len(of), note=note)


def _costs(found: Found) -> Table:
    head = ("", "FLOPs jointly", "alone, together", "ratio", "time jointly", "alone, together", "ratio")
    rows = tuple(
        (
            row["label"],
            *(_flops(row[key]) for key in ("joint_flops", "alone_flops")),
            f"{row['joint_flops'] / row['alone_flops']:.2f}",
            *(f"{row[key]:,.0f} s" for key in ("joint_seconds", "alone_seconds")),
            f"{row['joint_seconds'] / row['alone_seconds']:.2f}",
        )
        for row in found["costs"]
        if row["alone_flops"]
    )
    return Table("What the joint run costs against separate ones", head, rows)


def _near(found: Found) -> Table:
    head = ("", "level", "seed", f"alone, less {NEAR}", "jointly after FLOPs", "alone after FLOPs")
    rows = tuple(
        (row["label"], row["level"], seed, f"{one['goal']:.2f}", _after(one["jointly"]), _after(one["alone"]))
        for row in found["near"]
        for seed, one in row["seeds"].items()
    )
    note = (
        "The training FLOPs of the whole run, jointly those of both networks, at the first look at which a level is "
        f"within {NEAR} of the best look that it has alone. A look comes after each epoch, on validation data; of "
        "translations it is by a greedy search for the first pairs."
    )
    return Table(f"Within {NEAR} {found['score']} of the same level alone", head, rows, words=3, note=note)


def _starts(found: Found) -> Table:
    scores = ("core_alone", "core", "full")
    known = [row for row in found["starts"] if any(row[key] is not None for key in scores)]
    is_over = len(found["starts"]) > 1 and all(row["is_known"] for row in found["starts"])  # none is the best of one
    best = max((row["merit"] for row in found["starts"] if row["merit"] is not None), default=None) if is_over else None
    rows = tuple(
        (
            row["start"] + (" (best by validation)" if row["merit"] == best and best is not None else ""),
            *(_score(row[key]) for key in scores),
            _merit(row["merit"], found["judge"]) if row["is_known"] else _NONE,
        )
        for row in known
    )
    head = ("start", "core alone", "core jointly", "full jointly", f"validation {found['judge']}, jointly")
    return Table("How the low-rank layers start", head, rows, note="With seed 0, at the cell that the grid chose.")


def _score(value: float | str | None) -> str:
    return _NONE if value is None else value if isinstance(value, str) else f"{value:.2f}"


def _grid(found: Found) -> Table:
    rows = tuple(
        (row["row"], f"{row['lr']:g}", str(row["warm_up"]), _merit(row["merit"], found["judge"]), "✓" * row["chosen"])
        for row in found["grid"]
    )
    head = ("row", "learning rate", "warm-up", f"validation {found['judge']}", "chosen")
    note = (
        "Every row that is tuned is tuned over the same cells, with as many looks. The number is the mean over trained "
        "levels. Cells that only some rows have are of an earlier grid, and are not chosen from."
    )
    return Table("The grid", head, rows, note=note)


def _elsewhere(found: Found) -> Table:
    rows = tuple(
        (
            row["row"],
            f"{row['lr']:g}",
            str(row["warm_up"]),
            row["level"],
            _ours(row["scores"], row["diverged"], len(row["scores"])),
            _merit(row["merit"], found["judge"]),
            "✓" * row["chosen"],
            "✓" * row["shown"],
        )
        for row in found["elsewhere"]
    )
    judged = f"validation {found['judge']}"
    head = ("row", "learning rate", "warm-up", "level", found["score"], judged, "chosen", "shown")
    note = (
        "Chosen: by the grid of short runs. Shown above: the best of these by validation, which is told of seed 0. A "
        "network that is trained alone has one level, which is called full."
    )
    return Table("Whole runs at several cells of the grid", head, rows, note=note)


def _merit(merit: float | None, judge: str) -> str:
    if merit is None:
        return "diverged"
    return f"{-merit if judge == 'loss' else merit:.4f}"


def _after(flops: float | None) -> str:
    return "not reached" if flops is None else _flops(flops)


def _flops(value: float | None) -> str:
    return f"{value:.3g}" if value else _NONE
