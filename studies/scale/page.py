"""The figures of docs/scale.md: the fit of the links, predicted and measured steps, and more workers than we have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from studies import results
from studies.pages import table
from studies.scale.model import (
    Link,
    MeasuredStep,
    Sample,
    all_reduce_seconds,
    fit_link,
    fit_overlap,
    mean_error,
    predict,
    step_seconds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = results.RESULTS / "scale.jsonl"
FIGURE = "scale"
DPI = 110
WORKERS = (2, 8, 64, 1024)
GBITS = (1, 2, 5, 10, 25, 50, 100)


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
                steps[where] = MeasuredStep(record["rate"], record["workers"], size, compute, seconds)
    return steps


def samples_of(records: list[dict[str, Any]]) -> list[Sample]:
    return [
        Sample(record["rate"], record["workers"], float(key.split(" ")[1]), seconds)
        for record in records
        for key, seconds in record.items()
        if key.startswith("all-reduce ")
    ]


def sections(file: Path = FILE) -> str:
    records = results.read(file)
    if not records:
        return "Nothing was measured yet: `python -m studies.scale`."
    steps, (efficiency, latency) = steps_of(records), fit_link(samples_of(records))
    overlap = fit_overlap(list(steps.values()), efficiency, latency)
    error = mean_error(list(steps.values()), efficiency, latency, overlap)
    rows = []
    for (link, workers, nest, level), step in steps.items():
        predicted = predict(step, efficiency, latency, overlap)
        numbers = (step.compute, predicted, step.seconds)
        cells = [f"{1000 * seconds:,.0f}" for seconds in numbers]
        difference = f"{100 * (predicted / step.seconds - 1):+.0f} %"
        rows.append((f"{link}, {workers} workers, {nest}, {level}", f"{step.size / 1e6:.1f}", *cells, difference))
    head = ("step", "MB of gradients", "computation, ms", "predicted, ms", "measured, ms", "error")
    made = sorted({f"on {each['date']} with torch {each['torch']}" for each in records})
    fit = (
        f"**Fitted** to {len(samples_of(records))} measured all-reduces: gradients get {100 * efficiency:.0f} % of a "
        f"link's rate, and a round of the ring takes {1000 * latency:.1f} ms besides. **Fitted to the steps:** "
        f"{100 * overlap:.0f} % of the backward pass hides communication. The mean error of the predicted steps is "
        f"{100 * error:.0f} %. Measured {'; '.join(made)} by `python -m studies.scale`."
    )
    return "\n\n".join([fit, table(head, rows), predictions(efficiency)])


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
        f"step, {1e6 * JOB.latency:.0f} µs for a round of an all-reduce besides its bytes, and that communication "
        f"hides behind {100 * JOB.overlap:.0f} % of the backward pass."
    )
    return "\n\n".join([job, table(head, rows), f"![Predicted step times](figures/{FIGURE}.png)"])


def step_at(workers: int, gbits: float, efficiency: float, *, is_core: bool) -> float:
    """Predicted seconds of a step of the job."""
    size = 4 * JOB.parameters * (JOB.share if is_core else 1.0)
    link = Link(gbits * 1e9, JOB.latency, efficiency)
    communication = all_reduce_seconds(link, workers, size, messages=max(1, round(size / 25e6)))
    return step_seconds(JOB.core_compute if is_core else JOB.compute, communication, JOB.overlap)


def draw(to: Path, file: Path = FILE) -> None:
    """Write the figure as a small file, if the links were measured."""
    if records := results.read(file):
        drawn = figure(fit_link(samples_of(records))[0])
        drawn.savefig(to / f"{FIGURE}.png", dpi=DPI, metadata={"Software": None})


def figure(efficiency: float) -> Figure:
    """Seconds of a full step and of an alternating pair's mean step, and their ratio, against the rate of the links."""
    from matplotlib.figure import Figure

    from partialsgd.logging.figures import COLORS

    drawn = Figure(figsize=(6.75, 2.9), layout="constrained")
    times, ratios = drawn.subplots(1, 2)
    for color, workers in zip(COLORS, WORKERS, strict=False):
        full = [step_at(workers, gbits, efficiency, is_core=False) for gbits in GBITS]
        core = [step_at(workers, gbits, efficiency, is_core=True) for gbits in GBITS]
        mean = [(a + b) / 2 for a, b in zip(full, core, strict=True)]
        times.plot(GBITS, full, color=color, label=f"{workers:,} workers, full")
        times.plot(GBITS, mean, color=color, linestyle=(0, (5, 1.5)), label=f"{workers:,} workers, alternating")
        ratios.plot(GBITS, [a / b for a, b in zip(mean, full, strict=True)], color=color, label=f"{workers:,} workers")
    times.set(xscale="log", yscale="log", xlabel="Gbit/s", ylabel="seconds a step, predicted")
    ratios.set(xscale="log", xlabel="Gbit/s", ylabel="alternating ÷ full steps only")
    for axes in (times, ratios):
        axes.grid(visible=True, color="0.9", linewidth=0.5)
        axes.legend(fontsize=6, frameon=False)
        axes.tick_params(labelsize=8)
    return drawn
