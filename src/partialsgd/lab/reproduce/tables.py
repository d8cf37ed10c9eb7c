"""An experiment's numbers as tables, in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, final

from rich.table import Table as RichTable

from partialsgd.lab.reproduce import findings, paired
from partialsgd.lab.reproduce.numbers import NEAR, Numbers
from partialsgd.lab.reproduce.paired import Difference

_TERMINAL = 80

_NONE = "–"
_OUTCOMES = ("scores", "equal_flops", "diverged", "equal_flops_diverged")
_MEASURED = ("c_norm²", "c_sim²", "c_align²", "cosine")
_SHARED = "full"
"""The row that stands in every group and alone is not worth a group."""


@final
@dataclass(frozen=True)
class Table:
    """Cells of text, in rows and columns."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """How many columns from the left hold words, not numbers."""
    note: str = ""


def to_markdown(table: Table, level: int = 2) -> str:
    line = [" --- "] * table.words + [" --: "] * (len(table.head) - table.words)
    body = [f"| {' | '.join(row)} |" for row in table.rows]
    lines = [f"{'#' * level} {table.title}", "", f"| {' | '.join(table.head)} |", f"|{'|'.join(line)}|", *body]
    return "\n".join([*lines, "", table.note] if table.note else lines)


def to_rich(table: Table) -> RichTable:
    """A table for the terminal: one that is too wide loses its padding, and no cell is cut."""
    heads = [max(map(len, name.split()), default=0) for name in table.head]  # a head may be broken between words
    widths = [max([head, *(len(row[k]) for row in table.rows)]) for k, head in enumerate(heads)]
    is_wide = sum(widths) + 3 * len(widths) + 1 > _TERMINAL
    rich = RichTable(title=table.title, caption=table.note or None, padding=(0, 0 if is_wide else 1))
    for k, name in enumerate(table.head):
        justify: Literal["left", "right"] = "left" if k < table.words else "right"
        rich.add_column(name, justify=justify, min_width=widths[k] if is_wide else heads[k], overflow="fold")
    for k, row in enumerate(table.rows):
        ends = k + 1 < len(table.rows) and table.rows[k + 1][0] != row[0]
        rich.add_row(*row, end_section=ends)
    return rich


def tables(numbers: Numbers) -> list[Table]:
    """Equal totals first, the paper's table, then costs and tuning; tables without a row are left out."""
    if numbers["criteria"]:
        return [_criteria(numbers)]
    every = (_sums, _main, _epochs, _costs, _near, _starts, _grid, _other_cells)
    return [table for make in every if (table := make(numbers)).rows]


def markdown(numbers: Numbers) -> str:
    first, *more = [to_markdown(table) for table in tables(numbers)] or [""]
    parts = [f"# {numbers['title']}", first, bullets(numbers), *more, choices(numbers), versions(numbers)]
    return "\n\n".join(part for part in parts if part) + "\n"


def bullets(numbers: Numbers) -> str:
    return "\n".join(f"- {sentence}" for sentence in findings.sentences(numbers))


def choices(numbers: Numbers) -> str:
    return "\n".join(["## Choices that the paper leaves open", "", *(f"- {choice}" for choice in numbers["choices"])])


def versions(numbers: Numbers) -> str:
    """The library versions of the runs; a line for each set of versions."""
    lines = [", ".join(f"{name} {version}" for name, version in each.items()) for each in numbers["versions"]]
    lines += [f"sacrebleu's {each}" for each in numbers["signature"]]
    return "\n".join(f"Made with {line}." for line in lines)


def spread(values: Iterable[float | None]) -> str:
    """The mean with the sample deviation in brackets, as the paper prints them."""
    values = list(values)
    finite = [value for value in values if value is not None]
    if len(finite) < len(values) or not finite:
        return "no bound" if values else _NONE
    return f"{fmean(finite):.2f}" + (f" ({stdev(finite):.2f})" if len(finite) > 1 else "")


def _shown(numbers: Numbers) -> list[Mapping[str, Any]]:
    """Lines with a result, of groups that have more than the shared row."""
    lines = [line for line in numbers["lines"] if any(line[key] for key in _OUTCOMES)]
    groups = {line["group"] for line in lines if line["row"] != _SHARED} or {line["group"] for line in lines[:1]}
    return [line for line in lines if line["group"] in groups]


def _sums(numbers: Numbers) -> Table:
    rows = tuple(
        (
            row["label"].removeprefix("r = "),
            row["level"],
            *(spread(row.get(f"{trained}_scores", {}).values()) for trained in ("alone", "jointly")),
            *(str(paired_difference(row, name)) for name in ("scores", "losses")),
        )
        for row in numbers["sums"]
    )
    head = ("r", "network", "alone", "jointly", "jointly less alone", "loss, jointly less alone")
    note = (
        f"{numbers['score']} on the validation data, at the end of the joint run, and of a network alone when both "
        "networks alone had used the FLOPs of the joint run together. The learning rate does not depend on the length "
        "of the training, so that this is what shorter runs would have reached; but the joint run takes more steps for "
        "the same FLOPs, and the rate falls with the steps, which may be a part of the difference. Mean (deviation) of "
        "the seeds, and mean difference ± its 95 % interval. This answers: I want both networks; one run or two, for "
        "the same total cost? Below, alone each network has as many epochs as the joint run: how much is lost for half "
        "of the cost? And at equal FLOPs each has all FLOPs of the joint run: I want one network only."
    )
    return Table("One joint run, or one run for each network: the same total FLOPs", head, rows, words=2, note=note)


def paired_difference(row: Mapping[str, Any], name: str) -> Difference:
    """Jointly less alone of one of the records that `equal_sum.collect` makes, in "scores" or "losses"."""
    jointly, alone = row[f"jointly_{name}"], row[f"alone_{name}"]
    return paired.difference([jointly[seed] - alone[seed] for seed in jointly])


def _main(numbers: Numbers) -> Table:
    lines = _shown(numbers)
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
        f"{numbers['score']} on the test data: mean (deviation) of {seeds} seed{'s' * (seeds > 1)}, unless "
        "stated otherwise. The paper's is of its own data and sizes."
    ) + (f" At equal FLOPs: with as many training FLOPs as {ours}." if is_equal else "")
    return Table("Beside the paper", head, rows, words=3, note=note)


def _epochs(numbers: Numbers) -> Table:
    """The cost of an epoch; where the paper prints FLOPs, these and ours as it counts them."""
    lines = [line for line in _shown(numbers) if line["scores"]]
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
    """Mean and deviation, and how many seeds if other lines have more."""
    few = f", {len(scores)} seed{'s' * (len(scores) > 1)}" if 0 < len(scores) < seeds else ""
    return spread(scores.values()) + few + (f", {diverged} diverged" if diverged else "")


def _criteria(numbers: Numbers) -> Table:
    scores = {line["row"]: spread(line["scores"].values()) for line in numbers["lines"]}
    of = ("of",) if any(row["of"] != "network" for row in numbers["criteria"]) else ()
    rows = tuple(
        (
            *(row[key] for key in ("curve", *of)),
            *(spread(row[key]) for key in _MEASURED),
            f"{fmean(row['negative']):.0%}",
            scores[row["row"]],
        )
        for row in numbers["criteria"]
    )
    note = (
        "Medians, of the cosine the mean, over the second half of each training; mean (deviation) of the seeds. "
        f"< 0: how often the cosine is negative. {numbers['score']}: of the whole network on the test data."
    )
    head = ("trained", *of, *_MEASURED, "< 0", numbers["score"])
    return Table("The criteria", head, rows, words=1 + len(of), note=note)


def _costs(numbers: Numbers) -> Table:
    head = ("", "FLOPs jointly", "alone, together", "ratio", "time jointly", "alone, together", "ratio")
    rows = tuple(
        (
            row["label"],
            *(_flops(row[key]) for key in ("joint_flops", "alone_flops")),
            f"{row['joint_flops'] / row['alone_flops']:.2f}",
            *(f"{row[key]:,.0f} s" for key in ("joint_seconds", "alone_seconds")),
            f"{row['joint_seconds'] / row['alone_seconds']:.2f}",
        )
        for row in numbers["costs"]
        if row["alone_flops"]
    )
    return Table("What the joint run costs against separate ones", head, rows)


def _near(numbers: Numbers) -> Table:
    head = ("", "level", "seed", f"alone, less {NEAR}", "jointly after FLOPs", "alone after FLOPs")
    rows = tuple(
        (row["label"], row["level"], seed, f"{one['goal']:.2f}", _after(one["jointly"]), _after(one["alone"]))
        for row in numbers["near"]
        for seed, one in row["seeds"].items()
    )
    note = (
        "The training FLOPs of the whole run, jointly those of both networks, at the first evaluation at which a "
        f"level is within {NEAR} of the best evaluation that it has alone. Levels are evaluated after each epoch, on "
        "the validation data; of translations this is a greedy search for the first pairs."
    )
    return Table(f"Within {NEAR} {numbers['score']} of the same level alone", head, rows, words=3, note=note)


def _starts(numbers: Numbers) -> Table:
    scores = ("core_alone", "core", "full")
    starts = numbers["starts"]
    is_over = len(starts) > 1 and all(row["is_known"] for row in starts)  # none is the best of one
    decided = [row["selection_score"] for row in starts if row["selection_score"] is not None and is_over]
    rows = tuple(
        (
            row["start"] + " (best by validation)" * (bool(decided) and row["selection_score"] == max(decided)),
            *(_score(row[key]) for key in scores),
            _selection(row["selection_score"], numbers["criterion"]) if row["is_known"] else _NONE,
        )
        for row in starts
        if any(row[key] is not None for key in scores)
    )
    head = ("start", "core alone", "core jointly", "full jointly", f"validation {numbers['criterion']}, jointly")
    return Table("How the low-rank layers start", head, rows, note="With seed 0, at the cell that the grid chose.")


def _score(value: float | str | None) -> str:
    return _NONE if value is None else value if isinstance(value, str) else f"{value:.2f}"


def _grid(numbers: Numbers) -> Table:
    criterion = numbers["criterion"]
    rows = tuple(
        (*_cell(row), _selection(row["selection_score"], criterion), "✓" * row["chosen"]) for row in numbers["grid"]
    )
    head = ("row", "learning rate", "warm-up", f"validation {numbers['criterion']}", "chosen")
    note = (
        "Every row that is tuned is tuned over the same cells, with as many evaluations. The number is the mean over "
        "trained levels. Cells that only some rows have are of an earlier grid, and are not chosen from."
    )
    return Table("The grid", head, rows, note=note)


def _other_cells(numbers: Numbers) -> Table:
    rows = tuple(
        (
            *_cell(row),
            row["level"],
            _ours(row["scores"], row["diverged"], len(row["scores"])),
            _selection(row["selection_score"], numbers["criterion"]),
            "✓" * row["chosen"],
            "✓" * row["shown"],
        )
        for row in numbers["other_cells"]
    )
    validation = f"validation {numbers['criterion']}"
    head = ("row", "learning rate", "warm-up", "level", numbers["score"], validation, "chosen", "shown")
    note = (
        "Chosen: by the grid of short runs. Shown above: the best of these by the validation number, which is given "
        "for seed 0. A network that is trained alone has one level, which is called full."
    )
    return Table("Whole runs at several cells of the grid", head, rows, note=note)


def _cell(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["row"], f"{row['lr']:g}", str(row["warm_up"])


def _selection(score: float | None, criterion: str) -> str:
    if score is None:
        return "diverged"
    return f"{-score if criterion == 'loss' else score:.4f}"


def _after(flops: float | None) -> str:
    return "not reached" if flops is None else _flops(flops)


def _flops(value: float | None) -> str:
    return f"{value:.3g}" if value else _NONE
