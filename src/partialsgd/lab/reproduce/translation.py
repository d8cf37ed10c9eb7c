"""Tables 1 and 2, a Transformer and its low-rank or narrow core, and Figure 4, the criteria of its half width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, final

from partialsgd.lab.page.formatting import plural
from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import Request, paper
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Figure, Grid, Line, Row, always
from partialsgd.lab.reproduce.paper import EPOCH_MINUTES, FULL_ALONE, LOW_RANK_64, TABLES
from partialsgd.lab.reproduce.run_folder import RunFolder, equal_flops, equal_flops_name

_CORPUS = {"table1a": "iwslt14", "table1b": "wmt17", "table2a": "iwslt14", "table2b": "wmt17"}
_STARTS = ("zero", "svd", "matched")
_START_RATIO = "1/32"
"""The ratio at which the starts of the low-rank layers are compared."""
_BEST_START = "the starts at r = 1/32, or --start"

_SIZES = Translation(layers=3, d_model=64, ffn=256, heads=4, vocabulary=3000, max_tokens=1500)
LAPTOP = replace(_SIZES, schedule="inverse-sqrt", epochs=8, look_bleu=500, keep=1, threads=1)
"""The settings of Tables 1 and 2 at laptop scale."""
_TINY = replace(LAPTOP, layers=1, d_model=32, ffn=64, vocabulary=400, size=240, valid_size=30, test_size=15)
_SMOKE = replace(_TINY, max_tokens=600, epochs=2, look_bleu=10, beam=2)
_RATES = (3e-3, 6e-3, 1.2e-2)
"""The learning rates to try at the depth of the scale; a deeper network needs smaller ones."""

_ALONE = (
    "A core alone is taken out of the same nested model, from the same start, and trained by a plain loop.",
    "Adam's weight decay is decoupled, as in fairseq.",
    "At equal FLOPs a network alone has other epochs than the joint run, and so is evaluated at other steps.",
)
_RANK = (
    "The low-rank layers have one bias, shared by both networks. Parameters are those of a network that is taken out: "
    "of the whole one VU is merged into W."
)
_NARROW = (
    "A narrow core has the first hidden units, and of each head the first dimensions of query and key, at least one."
)
_RANK_64 = "The low-rank core of r = 1/64 starts as it would by itself ('zero')."
_FIGURE_CHOICES = (
    "The core is measured at full steps and at core steps alike, from the step's own batch, with the same dropout in "
    "both gradients.",
    "The first units of each layer and head form the core.",
    f"{paper.SMOOTHING}; under alternation they come in turns from before full and before core steps.",
)
_SEEDS = "Deviations are over seeds, which change weights, order of batches and dropout together."
_SCHEDULES = {"linear": "along a line to 0", "inverse-sqrt": "with the root of the steps"}


def experiment(name: str, request: Request) -> Experiment:
    return _figure(name, request) if name == "figure4" else _table(name, request)


def _describe_transformer(base: Translation) -> str:
    """The sizes and the training, except for what the grid decides."""
    return (
        f"Network: {plural(base.layers, 'block')} on each side of width {base.d_model}, {base.ffn:,} hidden units, "
        f"{base.heads} heads, dropout {base.dropout:g}. Training: {paper.describe_length(base)} of batches with at "
        f"most {base.max_tokens:,} pieces on a side, out of a vocabulary of {base.vocabulary:,}; label smoothing "
        f"{base.label_smoothing:g}; after its warm-up the rate falls {_SCHEDULES[base.schedule]}."
    )


def _describe_search(base: Translation) -> str:
    beam = f"beam search over {base.beam} hypotheses with length penalty {base.lenpen:g}"
    search = "greedy search" if base.beam == 1 else beam
    return (
        f"The translation is from {base.source!r} into {base.target!r}, by {search}. "
        "BLEU is sacrebleu's on detokenised text, of one checkpoint, no average: the best by validation loss, of a "
        "joint run by the mean of both networks' losses."
    )


def _table(name: str, request: Request) -> Experiment:
    plan = _Plan(name, request)
    core = "low-rank" if plan.is_low_rank else "narrow"
    if not plan.is_low_rank:
        request.refuse(name, "start")
    return Experiment(
        name=name,
        title=f"Table {name.removeprefix('table')}: a Transformer and its {core} core, alone and jointly",
        score="BLEU",
        grid=plan.grid,
        rows=lambda folder: list(plan.rows(folder)),
        lines=lambda folder: list(plan.lines(folder)),
        comparisons=lambda folder: [plan.comparison(ratio, plan.start(folder)) for ratio in plan.ratios],
        choices=plan.choices,
        starts={start: plan.comparison(_START_RATIO, start) for start in plan.starts},
    )


@final
class _Plan:
    """The rows and lines of one of the tables."""

    def __init__(self, name: str, request: Request) -> None:
        self.name, self.request = name, request
        self.ratios, self.is_low_rank = list(TABLES[name]), name.startswith("table1")
        starts = _STARTS if request.start is None else (request.start,)
        self.starts: tuple[str, ...] = starts if self.is_low_rank else ()
        preset = PRESETS[_CORPUS[name]]
        scale = {"smoke": _SMOKE, "laptop": LAPTOP, "paper": preset}[request.scale]
        self.base = replace(
            scale,
            look_bleu=scale.look_bleu or 500,
            layers=request.layers or scale.layers,
            epochs=request.epochs or scale.epochs,
            data=request.data,
            source=request.source or preset.source,
            target=request.target or preset.target,
            nest="low-rank" if self.is_low_rank else "width",
        )
        self.grid = Grid((Cell(preset.lr, preset.warm_up),))
        if request.scale != "paper":
            rates = [rate * (scale.layers / self.base.layers) for rate in _RATES]
            shorter = {"max_steps": 2} if request.scale == "smoke" else {}
            cells = tuple(Cell(lr, warm_up) for lr in rates for warm_up in (60, 240))
            self.grid = Grid(cells, {"epochs": 1, "look_bleu": 0, "beam": 1, **shorter})

    def start(self, folder: RunFolder) -> str | None:
        """The start whose joint run with seed 0 validates best; None until all are finished, or if all diverged."""
        if len(self.starts) < 2:
            return next(iter(self.starts), _STARTS[0])  # width has no starts and ignores it
        runs = {start: folder.finished(folder.run(self.row("joint", _START_RATIO, start), 0)) for start in self.starts}
        scores = {start: run.selection_score("loss") for start, run in runs.items() if run is not None}
        is_known = len(scores) == len(runs) and max(scores.values()) > -math.inf
        return max(scores, key=scores.__getitem__) if is_known else None

    def choices(self, folder: RunFolder) -> list[str]:
        minutes, gpu = EPOCH_MINUTES[_CORPUS[self.name]]
        sentences = [
            _describe_transformer(self.base),
            paper.describe_tuning(self.grid, self.base, "Learning rate and warm-up are the paper's for every row."),
            _describe_search(self.base),
            *_ALONE,
            *paper.ALTERNATION,
            _SEEDS,
            f"In the paper an epoch takes about {minutes} minutes on {gpu}, with and without alternating training.",
        ]
        if self.is_low_rank:
            return [self._describe_start(folder), _RANK, *sentences]
        return [_NARROW, *([_RANK_64] if self.name == "table2b" else []), *sentences]

    def _describe_start(self, folder: RunFolder) -> str:
        if self.request.start is not None:
            return f"How U, V and W start is not in the paper; here it is set to {self.request.start!r}."
        best = self.start(folder)
        tried = f"How U, V and W start is not in the paper: {', '.join(_STARTS)} are tried at r = {_START_RATIO}, and "
        tried += "the start whose joint run with seed 0 has the least validation loss is used for all rows: "
        return tried + (f"{best}." if best else f"not known yet, so {_STARTS[0]} is shown.")

    def row(self, kind: str, ratio: str, start: str | None) -> str:
        """The name of a row; it has the start where starts are compared, and all other rows have the best one."""
        name = f"{kind}-{ratio.replace('/', '_')}"
        return f"{name}-{start or self.starts[0]}" if self.starts and ratio == _START_RATIO else name

    def rows(self, folder: RunFolder) -> Iterator[Row]:
        """In order of value: the smallest ratio, the starts, the other ratios, equal FLOPs, and optional rows."""
        seeds, best = self.request.seeds, self.start(folder)
        first = self.starts[0] if self.starts else best
        whole, keywords = replace(self.base, nest="none", method="plain"), (*self.ratios, *self.starts[:1])
        yield Row("full", always(whole), seeds, "full", block=f"{self.ratios[-1]} {first}", keywords=keywords)
        for start in self.starts:
            yield from self.pair(_START_RATIO, start, seeds if start in (self.starts[0], best) else 1)
        for ratio in reversed(self.ratios):
            if not (self.starts and ratio == _START_RATIO):
                yield from self.pair(ratio, best, seeds)
        for ratio in reversed(self.ratios):
            yield from self.equal_flops(folder, ratio, best)
        if self.name == "table2b":
            make = self.settings("core", "1/64", "zero", nest="low-rank")
            yield Row("rank-1_64", make, seeds, "rank-1_64", block="rank-1_64")

    def pair(self, ratio: str, start: str | None, seeds: int) -> Iterator[Row]:
        for kind in ("core", "joint"):
            name, make = self.row(kind, ratio, start), self.settings(kind, ratio, start)
            block, keywords = f"{ratio} {start}", (ratio, str(start))
            yield Row(name, make, seeds, name, _BEST_START, block=block, keywords=keywords)

    def settings(self, kind: str, ratio: str, start: str | None, **more: Any) -> Callable[..., Translation | None]:
        changes: dict[str, Any] = {"ratio": (ratio,), "init": start, **more}
        if kind == "core":
            changes |= {"alone": "core", "method": "plain"}
        return lambda folder, seed: None if start is None else replace(self.base, **changes)

    def equal_flops(self, folder: RunFolder, ratio: str, start: str | None) -> Iterator[Row]:
        """Each network alone with the training FLOPs of the joint run of both."""
        comparison = self.comparison(ratio, start)
        for kind, alone in comparison.alone.items():
            if start is None:  # the joint run is not known yet
                name = f"{kind}-{ratio.replace('/', '_')}-flops"
                yield Row(name, lambda folder, seed: None, self.request.seeds, None, _BEST_START)
                continue
            name = self.equal_flops_name(folder, kind, ratio, start)
            yield equal_flops(comparison.joint, alone, name, self.request.seeds, self.request.data)

    def equal_flops_name(self, folder: RunFolder, kind: str, ratio: str, start: str | None) -> str:
        alone = self.comparison(ratio, start).alone[kind]
        return equal_flops_name(self.row(kind, ratio, start), alone, folder)

    def comparison(self, ratio: str, start: str | None) -> Comparison:
        alone = {"core": self.row("core", ratio, start), "full": "full"}
        return Comparison(f"r = {ratio}", self.row("joint", ratio, start), alone)

    def lines(self, folder: RunFolder) -> Iterator[Line]:
        start = self.start(folder)
        for ratio, printed in TABLES[self.name].items():
            rows = self.comparison(ratio, start)
            core, joint = rows.alone["core"], rows.joint
            equal = {kind: self.equal_flops_name(folder, kind, ratio, start) for kind in rows.alone}
            yield Line(ratio, "core", "alone", core, "full", printed.core_alone, equal["core"])
            yield Line(ratio, "core", "jointly", joint, "core", printed.core, joint)
            yield Line(ratio, "full", "alone", "full", "full", FULL_ALONE[_CORPUS[self.name]], equal["full"])
            yield Line(ratio, "full", "jointly", joint, "full", printed.full, joint)
        if self.name == "table2b":
            yield Line("1/64", "low-rank core", "alone", "rank-1_64", "full", LOW_RANK_64)


def _figure(name: str, request: Request) -> Experiment:
    request.refuse(name, "start", "epochs")
    base = _figure_base(request)
    small = f"a smaller network, and {'the corpus that was given' if request.data else 'the embedded corpus'}."
    choices = (
        "Which of its two corpora Figure 4 is of is not in the paper; here it is "
        + ("IWSLT14's setting." if request.scale == "paper" else small),
        _describe_transformer(base),
        f"The learning rate is {base.lr:g} after a warm-up of {base.warm_up} steps, for both trainings.",
        _describe_search(base),
        *_FIGURE_CHOICES,
        *paper.ALTERNATION,
        _SEEDS,
    )
    methods = {"alternating": "alternating", "standard": "plain"}
    rows = [Row(row, always(replace(base, method=methods[row])), request.seeds, None, block=name) for row in methods]
    return Experiment(
        name=name,
        title="Figure 4: overlap, similarity and alignment of a Transformer's half width",
        score="BLEU",
        rows=lambda _: rows,
        lines=lambda _: [Line("1/2", "full", row, row, "full") for row in methods],
        choices=lambda _: choices,
        figure=Figure(4, {"standard": "standard", "alternating": "alternating"}, "layers"),
    )


def _figure_base(request: Request) -> Translation:
    preset = PRESETS["iwslt14"]
    shared: dict[str, Any] = {
        "data": request.data,
        "source": request.source or preset.source,
        "target": request.target or preset.target,
        "nest": "width",
        "ratio": ("1/2",),
        "probe": "only('core')",
        "measure_layers": ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj"),
    }
    if request.scale == "paper":
        base = replace(preset, **shared, measure_every=500)
    else:
        shared |= {"lr": 1e-3, "warm_up": 100, "beam": 1, "keep": 1, "threads": 1, "epochs": 8}
        smoke: dict[str, Any] = {"size": 120, "valid_size": 20, "test_size": 8, "d_model": 32, "ffn": 32, "layers": 1}
        smoke |= {"vocabulary": 400, "max_steps": 8, "measure_every": 2}
        laptop: dict[str, Any] = {"max_steps": 1200, "evaluate_every": 4, "measure_every": 20}
        base = replace(PRESETS["laptop"], **shared, **(smoke if request.scale == "smoke" else laptop))
    return replace(base, layers=request.layers or base.layers)
