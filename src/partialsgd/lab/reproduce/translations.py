"""Tables 1 and 2: a Transformer and its low-rank or narrow core, alone and jointly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final

from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import budgets, choices, instead
from partialsgd.lab.reproduce.budgets import with_the_flops_of
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Asked, Cell, Experiment, Grid, Line, Make, Row, Together, refuse
from partialsgd.lab.reproduce.printed import EPOCH_MINUTES, FULL_ALONE, LOW_RANK_64, TABLES

_CORPUS = {"table1a": "iwslt14", "table1b": "wmt17", "table2a": "iwslt14", "table2b": "wmt17"}
_JUDGE = "loss"
_STARTS = ("zero", "svd", "matched")
_STARTED = "1/32"
"""The ratio at which the starts of the low-rank layers are compared."""
_BEST = "the starts at r = 1/32, or --start"

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
_LOCAL = {"smoke": _SMOKE, "laptop": _SMALL, "deep": replace(_SMALL, layers=6)}
"""The scales that need no GPU; at "deep" the network has the paper's six blocks on each side."""
_RATES = (3e-3, 6e-3, 1.2e-2)
_DEEP_RATES = (1.5e-3, 3e-3, 6e-3)
"""With six blocks every row wants a smaller one."""

_OF_ALONE = (
    "A core alone is taken out of the same family, from the same start, and trained by a plain loop.",
    "Adam's weight decay is decoupled, as in fairseq.",
    "At equal FLOPs a network alone has other epochs than the joint run, and so other looks at the validation data.",
)
_OF_INSTEAD = (
    "A core that is distilled, or that starts from an SVD, is shown with the FLOPs of its own training; those of the "
    "whole network that it takes come on top."
)
_OF_RANK = (
    "The low-rank layers have one bias, shared by both networks. Parameters are those of a network that is taken out: "
    "of the whole one VU is merged into W."
)
_OF_WIDTH = (
    "A narrow core has the first hidden units, and of each head the first dimensions of query and key, at least one."
)

_OF_RANK_64 = "The low-rank core of r = 1/64 starts as it would by itself ('zero')."


def experiment(name: str, asked: Asked) -> Experiment:
    plan = _Plan(name, asked)
    if plan.nest == "width":
        refuse(name, asked, "start")
    return Experiment(
        name=name,
        title=plan.title,
        score="BLEU",
        factor=1.0,
        judge=_JUDGE,
        grid=plan.grid,
        rows=lambda folder: list(plan.rows(folder)),
        lines=lambda folder: list(plan.lines(folder)),
        together=lambda folder: [plan.together(ratio, plan.start(folder)) for ratio in plan.ratios],
        choices=plan.choices,
        starts={start: plan.together(_STARTED, start) for start in plan.starts},
    )


@final
@dataclass(frozen=True)
class _Plan:
    """The rows and lines of one of the tables."""

    name: str
    asked: Asked

    @cached_property
    def base(self) -> Translation:
        corpus = PRESETS[_CORPUS[self.name]]
        chosen = corpus if self.asked.scale == "paper" else _LOCAL[self.asked.scale]
        return replace(
            chosen,
            look_bleu=chosen.look_bleu or 500,
            epochs=self.asked.epochs or chosen.epochs,
            data=self.asked.data,
            source=self.asked.source or corpus.source,
            target=self.asked.target or corpus.target,
            nest=self.nest,
        )

    @property
    def nest(self) -> Literal["low-rank", "width"]:
        return "low-rank" if self.name.startswith("table1") else "width"

    @property
    def title(self) -> str:
        what = "low-rank" if self.nest == "low-rank" else "narrow"
        return f"Table {self.name.removeprefix('table')}: a Transformer and its {what} core, alone and jointly"

    @property
    def grid(self) -> Grid:
        """At the paper's scale its own learning rate and warm-up; elsewhere three of the one and two of the other."""
        if self.asked.scale == "paper":
            return Grid((Cell(self.base.lr, self.base.warm_up),))
        rates = _DEEP_RATES if self.asked.scale == "deep" else _RATES
        cells = tuple(Cell(lr, warm_up) for lr in rates for warm_up in (60, 240))
        shorter: dict[str, Any] = {"max_steps": 2} if self.asked.scale == "smoke" else {}
        return Grid(cells, {"epochs": 1, "look_bleu": 0, "beam": 1, **shorter})

    @property
    def ratios(self) -> list[str]:
        return list(TABLES[self.name])

    @property
    def starts(self) -> tuple[str, ...]:
        """Of the low-rank layers, to choose among."""
        if self.nest != "low-rank":
            return ()
        return _STARTS if self.asked.start is None else (self.asked.start,)

    def start(self, folder: Folder) -> str | None:
        """The best by validation, of the joint training with the first seed; None until all are known, or if all of
        them have diverged."""
        if len(self.starts) < 2:
            return next(iter(self.starts), _STARTS[0])  # width has none, and takes no notice
        found = {start: folder.ended(folder.run(self.row("joint", _STARTED, start), 0)) for start in self.starts}
        merits = {start: ended.merit(_JUDGE) for start, ended in found.items() if ended is not None}
        is_known = len(merits) == len(found) and max(merits.values()) > -math.inf
        return max(merits, key=merits.__getitem__) if is_known else None

    def choices(self, folder: Folder) -> list[str]:
        untuned = "Learning rate and warm-up are the paper's for every row."
        told = [
            choices.of_transformer(self.base),
            choices.of_tuning(self.grid, self.base, untuned),
            choices.of_search(self.base),
            *_OF_ALONE,
            _OF_INSTEAD,
            *choices.OF_ALTERNATION,
            choices.OF_SEEDS,
            "In the paper an epoch takes about {} minutes on {}, with and without alternating training.".format(
                *EPOCH_MINUTES[_CORPUS[self.name]]
            ),
        ]
        if self.nest == "low-rank":
            return [self._start_in_words(folder), _OF_RANK, *told]
        return [_OF_WIDTH, *([_OF_RANK_64] if self.name == "table2b" else []), *told]

    def _start_in_words(self, folder: Folder) -> str:
        if self.asked.start is not None:
            return f"How U, V and W start is not in the paper; here as told, {self.asked.start!r}."
        best = self.start(folder)
        tried = f"How U, V and W start is not in the paper: {', '.join(_STARTS)} are tried at r = {_STARTED}, and the "
        tried += "start whose joint run with seed 0 has the least validation loss is used for all rows: "
        return tried + (f"{best}." if best else f"not known yet, so {_STARTS[0]} is shown.")

    def row(self, kind: str, ratio: str, start: str | None) -> str:
        """Only where starts are compared is one in the name; the other rows have the best."""
        name = f"{kind}-{ratio.replace('/', '_')}"
        return f"{name}-{start or self.starts[0]}" if self.starts and ratio == _STARTED else name

    def rows(self, folder: Folder) -> Iterator[Row]:
        """In order of value: the smallest ratio, the starts, the other ratios, equal FLOPs, and what is optional."""
        seeds, best = self.asked.seeds, self.start(folder)
        first = self.starts[0] if self.starts else best
        whole = self.tuned("full", self.whole, seeds, block=f"{self.ratios[-1]} {first}")
        yield replace(whole, meant_by=(*self.ratios, *self.starts[:1]))
        for start in self.starts:
            yield from self.pair(_STARTED, start, seeds if start in (self.starts[0], best) else 1)
        for ratio in reversed(self.ratios):
            if not (self.starts and ratio == _STARTED):
                yield from self.pair(ratio, best, seeds)
        for ratio in reversed(self.ratios):
            yield from self.at_equal_flops(folder, ratio, best, seeds)
        yield from self.instead(best, seeds)
        if self.name == "table2b":
            yield self.tuned("rank-1_64", self.made("core", "1/64", "zero", nest="low-rank"), seeds)

    def tuned(self, name: str, make: Make, seeds: int, block: str = "") -> Row:
        return Row(name, make, seeds, tuned_as=name, block=block or name)

    def pair(self, ratio: str, start: str | None, seeds: int) -> Iterator[Row]:
        for kind in ("core", "joint"):
            name = self.row(kind, ratio, start)
            row = self.tuned(name, self.made(kind, ratio, start), seeds, block=f"{ratio} {start}")
            yield replace(row, meant_by=(ratio, str(start)), waits_for=_BEST)

    def whole(self, folder: Folder, seed: int) -> Translation:
        return replace(self.base, nest="none", method="plain")

    def made(self, kind: str, ratio: str, start: str | None, **more: Any) -> Make:
        changes: dict[str, Any] = {"ratio": (ratio,), "init": start, **more}
        if kind == "core":
            changes |= {"alone": "core", "method": "plain"}
        return lambda folder, seed: None if start is None else replace(self.base, **changes)

    def at_equal_flops(self, folder: Folder, ratio: str, start: str | None, seeds: int) -> Iterator[Row]:
        """Each network alone, with the training FLOPs of the joint run of both, once it is known which that is."""
        if start is None:
            for kind in ("core", "full"):
                unknown = f"{kind}-{ratio.replace('/', '_')}-flops"
                yield Row(unknown, lambda folder, seed: None, seeds, None, waits_for=_BEST)
            return
        rows = self.together(ratio, start)
        options: Any = {"data": self.asked.data, "grid": self.grid, "judge": _JUDGE}
        for kind, alone in rows.alone.items():
            yield with_the_flops_of(rows.joint, alone, self.paid(folder, kind, ratio, start), seeds, **options)

    def paid(self, folder: Folder, kind: str, ratio: str, start: str | None) -> str:
        """The row of a network alone at equal FLOPs."""
        alone = self.together(ratio, start).alone[kind]
        return budgets.named(self.row(kind, ratio, start), alone, folder, self.grid, _JUDGE)

    def instead(self, start: str | None, seeds: int) -> Iterator[Row]:
        """At every ratio the core taught by the whole network and, where it has an SVD, started from it."""
        cores = {self.row("core", ratio, start): ratio for ratio in reversed(self.ratios)}
        rows = [instead.distilled(core, self.made("core", ratio, start), seeds) for core, ratio in cores.items()]
        if self.nest == "low-rank":
            yield instead.half(self.whole, self.base.epochs, seeds)
            svds = {core: self.made("core", ratio, "svd") for core, ratio in cores.items()}
            rows += [instead.warm(core, svd, self.base.epochs, seeds) for core, svd in svds.items()]
        for row in rows:
            yield row if start is not None else replace(row, make=lambda folder, seed: None, waits_for=_BEST)

    def together(self, ratio: str, start: str | None) -> Together:
        alone = {"core": self.row("core", ratio, start), "full": "full"}
        return Together(f"r = {ratio}", self.row("joint", ratio, start), alone)

    def lines(self, folder: Folder) -> Iterator[Line]:
        start = self.start(folder)
        for ratio, printed in TABLES[self.name].items():
            rows = self.together(ratio, start)
            core, paid = rows.alone["core"], {kind: self.paid(folder, kind, ratio, start) for kind in rows.alone}
            yield Line(ratio, "core", "alone", core, "full", printed.core_alone, paid["core"])
            yield Line(ratio, "core", "jointly", rows.joint, "core", printed.core, rows.joint)
            yield Line(ratio, "core", "distilled from full", f"distilled-{core}", "full")
            if self.nest == "low-rank":
                yield Line(ratio, "core", "SVD of full at half time", f"warm-{core}", "full")
            yield Line(ratio, "full", "alone", "full", "full", FULL_ALONE[_CORPUS[self.name]], paid["full"])
            yield Line(ratio, "full", "jointly", rows.joint, "full", printed.full, rows.joint)
        if self.name == "table2b":
            yield Line("1/64", "low-rank core", "alone", "rank-1_64", "full", LOW_RANK_64)
