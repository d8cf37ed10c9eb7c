"""The figures of docs/scale.md: the fit of the links, predicted and measured steps, and more workers than we have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from studies import results
from studies.pages import table
from studies.scale.model import (
    Fit,
    Link,
    MeasuredStep,
    Sample,
    all_reduce,
    fit_link,
    fit_overlap,
    mean_error,
    messages_of,
    predict,
    step_seconds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = results.RESULTS / "scale.jsonl"
FIGURE = "scale"
DPI = 100
WORKERS = (2, 8, 64, 1024)
GBITS = (1, 2, 5, 10, 25, 50, 100)
STYLES: dict[str, Any] = {"full": "-", "alternating": (0, (5, 1.5)), "core": (0, (1, 1.5))}
"""The line of each kind of step."""


class Job(NamedTuple):
    """A training for which steps are predicted."""

    parameters: float
    share: float
    """The core's share of the parameters."""
    compute: float
    """Seconds of a full step without communication."""
    core_compute: float
    latency: float
    """Seconds of a round of an all-reduce: of a network card in a data centre, not of this machine."""
    overlap: float


JOB = Job(parameters=350e6, share=0.2, compute=0.25, core_compute=0.12, latency=20e-6, overlap=0.5)
"""An assumption, not a measurement: a network of 350 M parameters in fp32 and the core of rank 1/32."""


def steps_of(records: list[dict[str, Any]]) -> dict[tuple[str, int, str, str], MeasuredStep]:
    """The measured steps, by link, number of workers, nest and level."""
    steps = {}
    for record in records:
        for key, seconds in record.items():
            if key.startswith("step "):
                _, nest, level = key.split(" ")
                size, compute = record[f"bytes {nest} {level}"], record[f"compute {nest} {level}"]
                where = (record["link"], record["workers"], nest, level)
                crowding = crowding_of(record)
                steps[where] = MeasuredStep(record["rate"], record["workers"], crowding, size, compute, seconds)
    return steps


def crowding_of(record: dict[str, Any]) -> float:
    """The workers that share a processor."""
    return max(1.0, record["workers"] / record.get("processors", record["workers"]))


def samples_of(records: list[dict[str, Any]]) -> list[Sample]:
    return [
        Sample(record["rate"], record["workers"], crowding_of(record), float(key.split(" ")[1]), seconds)
        for record in records
        for key, seconds in record.items()
        if key.startswith("all-reduce ")
    ]


def fit_of(records: list[dict[str, Any]]) -> Fit:
    """Everything that is fitted is fitted to the fewest workers; the others are left to check it."""
    fewest = [each for each in records if each["workers"] == min(record["workers"] for record in records)]
    return fit_overlap(list(steps_of(fewest).values()), fit_link(samples_of(fewest)))


def sections(file: Path = FILE) -> str:
    records = results.read(file)
    if not records:
        return "Nothing was measured yet: `python -m studies.scale`."
    steps, fit = steps_of(records), fit_of(records)
    rows = []
    for (link, workers, nest, level), step in steps.items():
        predicted = predict(step, fit)
        numbers = (step.compute, predicted, step.seconds)
        cells = [f"{1000 * seconds:,.0f}" for seconds in numbers]
        difference = f"{100 * (predicted / step.seconds - 1):+.0f} %"
        rows.append((f"{link}, {workers} workers, {nest}, {level}", f"{step.size / 1e6:.1f}", *cells, difference))
    head = ("step", "MB of gradients", "computation, ms", "predicted, ms", "measured, ms", "error")
    made = sorted({f"on {each['date']} with torch {each['torch']}" for each in records})
    return "\n\n".join(
        [
            f"{_fitted(fit, steps)} Measured {'; '.join(made)} by `python -m studies.scale`.",
            table(head, rows),
            predictions(fit.efficiency),
        ]
    )


def _fitted(fit: Fit, steps: dict[tuple[str, int, str, str], MeasuredStep]) -> str:
    """What was fitted to which steps, and the errors on the others."""
    fewest = min(step.workers for step in steps.values())
    used = [step for step in steps.values() if step.workers == fewest]
    others = [step for step in steps.values() if step.workers != fewest]
    text = (
        f"**Fitted to {fewest} workers only:** to their all-reduces, that gradients get {100 * fit.efficiency:.0f} % "
        f"of a link's rate, that a round of the ring takes {1000 * fit.latency:.1f} ms besides, and that a processor "
        f"is busy for {1e9 * fit.handling:.1f} ns with each byte; to their steps, that {100 * fit.overlap:.0f} % of "
        "the backward pass hides the waiting. Computation is measured with as many workers at the same time. The mean "
        f"error on the steps of the fit is {100 * mean_error(used, fit):.0f} %."
    )
    if not others:
        return f"{text} No other number of workers was measured, so nothing checks the fit."
    numbers = " and ".join(str(number) for number in sorted({step.workers for step in others}))
    largest = max(abs(predict(step, fit) / step.seconds - 1) for step in others)
    return (
        f"{text} **Checked on {numbers} workers**, to which nothing was fitted: the mean error of their predicted "
        f"steps is {100 * mean_error(others, fit):.0f} %, the largest {100 * largest:.0f} %."
    )


def predictions(efficiency: float) -> str:
    """The table for accelerators: predicted, with a job that is assumed."""
    rows = []
    for workers in (8, 64, 1024):
        for gbits in (1, 10, 100):
            full, core = (step_at(workers, gbits, efficiency, is_core=is_core) for is_core in (False, True))
            pair = (full + core) / (2 * full)
            cells = (f"{1000 * full:,.0f}", f"{1000 * core:,.0f}", f"{core / full:.2f}", f"{pair:.2f}")
            rows.append((f"{workers:,} workers, {gbits} Gbit/s", *cells))
    head = ("predicted", "full step, ms", "core step, ms", "core ÷ full", "alternating ÷ full steps only")
    job = (
        f"**Predicted, not measured**, for a network of {JOB.parameters / 1e6:.0f} M parameters in fp32 whose core has "
        f"{JOB.share:g} of them. The efficiency of the links is the fitted one. Assumed are "
        f"{1000 * JOB.compute:.0f} ms of computation in a full step and {1000 * JOB.core_compute:.0f} ms in a core "
        f"step, {1e6 * JOB.latency:.0f} µs for a round of an all-reduce besides its bytes, that no processor which "
        f"computes is busy with them, and that communication hides behind {100 * JOB.overlap:.0f} % of the backward "
        "pass."
    )
    return "\n\n".join([job, table(head, rows), f"![Predicted step times](figures/{FIGURE}.png)"])


def step_at(workers: int, gbits: float, efficiency: float, *, is_core: bool) -> float:
    """Predicted seconds of a step of the job."""
    size = 4 * JOB.parameters * (JOB.share if is_core else 1.0)
    link = Link(gbits * 1e9, JOB.latency, efficiency)
    communication = all_reduce(link, workers, size, messages=messages_of(size))
    return step_seconds(JOB.core_compute if is_core else JOB.compute, communication, JOB.overlap)


def draw(to: Path, file: Path = FILE) -> None:
    """Write the figure as a small file, if the links were measured."""
    if records := results.read(file):
        drawn = figure(fit_of(records).efficiency)
        drawn.savefig(to / f"{FIGURE}.png", dpi=DPI, metadata={"Software": None})


def figure(efficiency: float) -> Figure:
    """Seconds of full, alternating and core steps, and what alternating costs, against the rate of the links.

    Colors are numbers of workers, and line styles kinds of steps. The legend stands above the axes, so that it covers
    no line.
    """
    from matplotlib.figure import Figure

    from partialsgd.logging.figures import COLORS

    drawn = Figure(figsize=(6.75, 3.2), layout="constrained")
    times, ratios = drawn.subplots(1, 2)
    for color, workers in zip(COLORS, WORKERS, strict=False):
        full = [step_at(workers, gbits, efficiency, is_core=False) for gbits in GBITS]
        core = [step_at(workers, gbits, efficiency, is_core=True) for gbits in GBITS]
        mean = [(a + b) / 2 for a, b in zip(full, core, strict=True)]
        for seconds, style in zip((full, mean, core), STYLES.values(), strict=True):
            times.plot(GBITS, seconds, color=color, linestyle=style)
        ratios.plot(GBITS, [a / b for a, b in zip(mean, full, strict=True)], color=color, label=f"{workers:,} workers")
    times.set(xscale="log", yscale="log", xlabel="Gbit/s", ylabel="seconds a step, predicted")
    ratios.set(xscale="log", xlabel="Gbit/s", ylabel="alternating ÷ full steps only")
    for axes in (times, ratios):
        axes.grid(visible=True, color="0.9", linewidth=0.5)
        axes.tick_params(labelsize=8)
        axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    for kind, style in STYLES.items():
        ratios.plot([], [], color="0.4", linestyle=style, label=kind)
    drawn.legend(
        loc="outside upper center",
        ncols=len(WORKERS) + len(STYLES),
        fontsize=7,
        frameon=False,
        columnspacing=1.2,
        handlelength=2.2,
    )
    return drawn
