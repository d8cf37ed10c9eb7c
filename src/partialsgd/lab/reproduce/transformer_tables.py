"""Tables 1 and 2: a Transformer and its low-rank or narrow core, alone and jointly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final

from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import paper
from partialsgd.lab.reproduce.equal_flops import equal_flops, equal_flops_name
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Grid, Line, MakeSettings, Request, Row
from partialsgd.lab.reproduce.paper import EPOCH_MINUTES, FULL_ALONE, LOW_RANK_64, TABLES
from partialsgd.lab.reproduce.run_folder import RunFolder

_CORPUS = {"table1a": "iwslt14", "table1b": "wmt17", "table2a": "iwslt14", "table2b": "wmt17"}
_STARTS = ("zero", "svd", "matched")
_START_RATIO = "1/32"
"""The ratio at which the starts of the low-rank layers are compared."""
_BEST_START = "the starts at r = 1/32, or --start"

_SMALL = Translation(
    layers=3,
    d_model=64,
    ffn=256,
    heads=4,
    vocabulary=3000,
    max_tokens=1500,
    schedule="inverse-sqrt",
    epochs=8,
    look_bleu=500,
    keep=1,
    threads=1,
)
_SMOKE = replace(
    _SMALL,
    layers=1,
    d_model=32,
    ffn=64,
    vocabulary=400,
    size=240,
    valid_size=30,
    test_size=15,
    max_tokens=600,
    epochs=2,
    look_bleu=10,
    beam=2,
)
_RATES = (3e-3, 6e-3, 1.2e-2)
"""For the depth of the scale; a deeper network needs smaller ones."""

_ALONE = (
    "A core alone is taken out of the same nested model, from the same start, and trained by a plain loop.",
    "Adam's weight decay is decoupled, as in fairseq.",
    "At equal FLOPs a network alone has other epochs than the joint run, and so other looks at the validation data.",
)
_RANK = (
    "The low-rank layers have one bias, shared by both networks. Parameters are those of a network that is taken out: "
    "of the whole one VU is merged into W."
)
_WIDTH = (
    "A narrow core has the first hidden units, and of each head the first dimensions of query and key, at least one."
)

_RANK_64 = "The low-rank core of r = 1/64 starts as it would by itself ('zero')."


def experiment(name: str, request: Request) -> Experiment:
    plan = _Plan(name, request)
    if plan.nest == "width":
        request.refuse(name, "start")
    return Experiment(
        name=name,
        title=plan.title,
        score="BLEU",
        factor=1.0,
        criterion="loss",
        grid=plan.grid,
        rows=lambda folder: list(plan.rows(folder)),
        lines=lambda folder: list(plan.lines(folder)),
        comparisons=lambda folder: [plan.comparison(ratio, plan.start(folder)) for ratio in plan.ratios],
        choices=plan.choices,
        starts={start: plan.comparison(_START_RATIO, start) for start in plan.starts},
    )


@final
@dataclass(frozen=True)
class _Plan:
    """The rows and lines of one of the tables."""

    name: str
    request: Request

    @cached_property
    def scale(self) -> Translation:
        return {"smoke": _SMOKE, "laptop": _SMALL, "paper": self.preset}[self.request.scale]

    @property
    def preset(self) -> Translation:
        return PRESETS[_CORPUS[self.name]]

    @cached_property
    def base(self) -> Translation:
        return replace(
            self.scale,
            look_bleu=self.scale.look_bleu or 500,
            layers=self.request.layers or self.scale.layers,
            epochs=self.request.epochs or self.scale.epochs,
            data=self.request.data,
            source=self.request.source or self.preset.source,
            target=self.request.target or self.preset.target,
            nest=self.nest,
        )

    @property
    def nest(self) -> Literal["low-rank", "width"]:
        return "low-rank" if self.name.startswith("table1") else "width"

    @property
    def title(self) -> str:
        core = "low-rank" if self.nest == "low-rank" else "narrow"
        return f"Table {self.name.removeprefix('table')}: a Transformer and its {core} core, alone and jointly"

    @property
    def grid(self) -> Grid:
        """At the paper's scale its own learning rate and warm-up; elsewhere three of the one and two of the other."""
        if self.request.scale == "paper":
            return Grid((Cell(self.base.lr, self.base.warm_up),))
        rates = [rate * (self.scale.layers / self.base.layers) for rate in _RATES]
        shorter = {"max_steps": 2} if self.request.scale == "smoke" else {}
        cells = tuple(Cell(lr, warm_up) for lr in rates for warm_up in (60, 240))
        return Grid(cells, {"epochs": 1, "look_bleu": 0, "beam": 1, **shorter})

    @property
    def ratios(self) -> list[str]:
        return list(TABLES[self.name])

    @property
    def starts(self) -> tuple[str, ...]:
        """The starts of the low-rank layers to choose among."""
        if self.nest != "low-rank":
            return ()
        return _STARTS if self.request.start is None else (self.request.start,)

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
            paper.describe_transformer(self.base),
            paper.describe_tuning(self.grid, self.base, "Learning rate and warm-up are the paper's for every row."),
            paper.describe_search(self.base),
            *_ALONE,
            *paper.ALTERNATION,
            paper.SEEDS,
            f"In the paper an epoch takes about {minutes} minutes on {gpu}, with and without alternating training.",
        ]
        if self.nest == "low-rank":
            return [self._describe_start(folder), _RANK, *sentences]
        return [_WIDTH, *([_RANK_64] if self.name == "table2b" else []), *sentences]

    def _describe_start(self, folder: RunFolder) -> str:
        if self.request.start is not None:
            return f"How U, V and W start is not in the paper; here as told, {self.request.start!r}."
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
        whole = Row("full", self.whole, seeds, "full", block=f"{self.ratios[-1]} {first}")
        yield replace(whole, keywords=(*self.ratios, *self.starts[:1]))
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

    def whole(self, folder: RunFolder, seed: int) -> Translation:
        return replace(self.base, nest="none", method="plain")

    def settings(self, kind: str, ratio: str, start: str | None, **more: Any) -> MakeSettings:
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
