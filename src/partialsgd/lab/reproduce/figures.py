"""An experiment's figures: scores against size, scores along the training, and the paper's own, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from partialsgd.lab.reproduce import equal_sum
from partialsgd.lab.reproduce.experiment import Comparison, Experiment, Figure
from partialsgd.lab.reproduce.numbers import Numbers, shown_comparisons, validation_curve
from partialsgd.lab.reproduce.run_folder import RunFolder, total_flops
from partialsgd.logging import figures
from partialsgd.logging.series import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

KINDS = ("png", "svg")
_SMOOTH = 5
"""Measurements in the running median that is drawn."""


def draw(experiment: Experiment, folder: RunFolder, numbers: Numbers) -> Iterator[tuple[str, Drawn]]:
    """Each figure that the finished runs give, by name."""
    if experiment.figure is not None:
        yield from paper_figure(folder, experiment.figure)
        return
    if any(line["scores"] for line in numbers["lines"]):
        yield "size", against_size(numbers)
    if curves := along_the_training(experiment, folder):
        yield "curves", curves
    if together := along_the_training(experiment, folder, together=True):
        yield "sum", together


def write(figure: Drawn, to: Path, name: str, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write one file for each kind; the same numbers give the same bytes."""
    from matplotlib import rc_context

    paths = [to / f"{name}.{kind}" for kind in kinds]
    whole: dict[str, Any] = {"dpi": 200, "bbox_inches": "tight", "pad_inches": 0.05}  # also the last tick's number
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        for path in paths:
            figure.savefig(path, **whole, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def paper_figure(folder: RunFolder, figure: Figure) -> Iterator[tuple[str, Drawn]]:
    """Figure 2, 3 or 4, drawn from the metrics of the finished runs."""
    runs = {
        label: [run.path / "metrics.jsonl" for run, _ in folder.scored(row)]
        for label, row in figure.curves.items()
        if folder.scored(row)
    }
    if not runs:
        return
    options: Any = {"figure": figure.number, "smooth": _SMOOTH}
    yield "criteria", figures.plot_criteria(runs, **options)
    if figure.group is not None:
        yield f"criteria-{figure.group}", figures.plot_criteria(runs, **options, group=figure.group)


def against_size(numbers: Numbers) -> Drawn:
    """The score of each network over its number of parameters, trained alone and jointly.

    If there are several ratios, each point is labelled with its own, except for the whole network alone.
    """
    from matplotlib.ticker import EngFormatter

    sheet = figures.new_figure(1)
    axes = sheet.axes[0]
    scored = [line for line in numbers["lines"] if line["scores"]]
    groups: dict[str, set[str]] = {}
    for line in scored:
        groups.setdefault(line["row"], set()).add(line["group"])
    is_several = len({min(own) for own in groups.values() if len(own) == 1}) > 1
    for number, trained in enumerate(dict.fromkeys(line["trained"] for line in scored)):
        own = [line for line in scored if line["trained"] == trained]
        own.sort(key=lambda line: float(line["parameters"]))
        deviations = [stdev(line["scores"].values()) if len(line["scores"]) > 1 else 0.0 for line in own]
        style = {**figures.line_style(number), "linestyle": "none"}
        means = [fmean(line["scores"].values()) for line in own]
        axes.errorbar([line["parameters"] for line in own], means, deviations, label=trained, capsize=2, **style)
        for line, mean in zip(own, means, strict=True):
            if is_several and groups[line["row"]] == {line["group"]}:
                side: Any = {"ha": "left", "xytext": (6, 0)} if number % 2 else {"ha": "right", "xytext": (-6, 0)}
                text: Any = {"fontsize": figures.SMALL - 1, "color": style["color"], "va": "center"}
                axes.annotate(line["group"], (line["parameters"], mean), textcoords="offset points", **side, **text)
    figures.finish_panel(axes, f"{numbers['score']} (test)")
    axes.set_xlabel("parameters", fontsize=figures.LARGE)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.18 if is_several else 0.1, y=0.1)
    return figures.finish_figure(sheet, None)


def along_the_training(experiment: Experiment, folder: RunFolder, *, together: bool = False) -> Drawn | None:
    """The validation score over the training FLOPs, joint and alone; a panel for each ratio.

    With `together=True` the FLOPs of networks alone are those of all of them together, which is fair where the learning
    rate does not depend on the length of the training; other comparisons are left out.
    """
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import EngFormatter

    joint = [each for each in shown_comparisons(experiment, folder) if folder.scored(each.joint)]
    if together:
        joint = [each for each in joint if _has_sum(folder, each)]
    drawn = [(each.label, dict(_curves(experiment, folder, each, together))) for each in joint]
    shown = [(label, curves) for label, curves in drawn if any(curves.values())]
    if not shown:
        return None
    sheet = NewFigure(figsize=(figures.COLUMN if len(shown) == 1 else figures.PAGE, 2.5), layout="constrained")
    sheet.subplots(1, len(shown), sharex=True, sharey=True)
    names = [name for name in shown[0][1] if any(curves[name] for _, curves in shown)]  # one legend for all panels
    for axes, (label, curves) in zip(sheet.axes, shown, strict=True):
        lines = {name: curves[name] or [Series({})] for name in names}
        figures.draw_curves(axes, lines, f"{experiment.score} (validation)", log=False)
        axes.set_xlabel(f"{'FLOPs for both' if together else 'training FLOPs'}, {label}", fontsize=figures.LARGE)
        axes.label_outer()
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figures.finish_figure(sheet, None)


def _has_sum(folder: RunFolder, comparison: Comparison) -> bool:
    runs = equal_sum.common_seeds(folder, comparison).values()
    return bool(runs) and all(equal_sum.evaluations_to_compare(joint, alone) for joint, alone in runs)


def _curves(
    experiment: Experiment, folder: RunFolder, rows: Comparison, together: bool
) -> Iterator[tuple[str, list[Series]]]:
    """The series by label, with the same labels for every ratio; a label without a finished run has no series."""
    costs = {row: [total_flops(summary) for _, summary in folder.scored(row)] for row in rows.alone.values()}
    all_alone = sum(fmean(each) for each in costs.values() if each)
    for level, alone in rows.alone.items():
        for trained, row, name in (("jointly", rows.joint, level), ("alone", alone, "full")):
            factor = all_alone / fmean(costs[row]) if together and trained == "alone" and costs[row] else 1.0
            curves = [validation_curve(experiment, scored, name) for scored in folder.scored(row)]
            yield f"{level} {trained}", _series([[(factor * place, score) for place, score in each] for each in curves])


def _series(curves: Sequence[Sequence[tuple[float, float]]]) -> list[Series]:
    """One series for each seed, all at the mean FLOPs of the seeds, whose batches differ a little in length."""
    evaluations = min((len(each) for each in curves), default=0)
    places = [round(fmean(each[k][0] for each in curves)) for k in range(evaluations)]
    return [Series({place: each[k][1] for k, place in enumerate(places)}) for each in curves] if evaluations else []
