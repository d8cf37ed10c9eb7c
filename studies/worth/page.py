"""The table of the study in docs/which_size.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

from partialsgd.lab.reproduce import equal_sum, paired, tables
from partialsgd.lab.reproduce.run_folder import AT, RunFolder, Scored, total_flops
from partialsgd.nested.switch import FULL
from studies import pages
from studies.results import RESULTS
from studies.worth import other_cells, regime, sizes, store
from studies.worth.other_cells import PLAIN
from studies.worth.plans import SCHEMES, Plan, first_row

HEAD = (
    "data and axis",
    "r",
    "joint run",
    "network",
    "seeds",
    "alone",
    "jointly",
    "jointly less alone",
    "FLOPs, jointly / alone",
)


def sections(folder: Path = RESULTS) -> str:
    """Plain alternation for every data set, then the other schemes where they were tried."""
    tuned, untuned = _stored_pairs(folder)
    if not tuned:
        return "No pair of joint and separate runs is stored yet."
    plain = [pair for pair in tuned if pair.scheme == PLAIN]
    others = [pair for pair in untuned if pair.scheme != PLAIN]
    tried = {(pair.plan.name, pair.ratio) for pair in others}
    beside = [pair for pair in untuned if pair.scheme == PLAIN and (pair.plan.name, pair.ratio) in tried]
    parts = [pages.table(HEAD, [pair.cells() for pair in plain]), *_chosen(plain), verdict(plain)]
    if others:
        rows = sorted([*beside, *others], key=lambda pair: (pair.plan.name, ratio_place(pair)))
        parts += [
            "Other schemes, beside plain alternation, all at one rate and warm-up:",
            pages.table(HEAD, [pair.cells() for pair in rows]),
        ]
    return "\n\n".join(parts)


def verdict(pairs: Sequence[Pair]) -> str:
    """In how many rows the joint network is ahead, and in how many by more than chance."""
    ahead = [pair for pair in pairs if pair.difference.mean >= 0]
    clear = [pair for pair in ahead if pair.difference.is_clear]
    behind = [pair for pair in pairs if pair.difference.mean < 0 and pair.difference.is_clear]
    return (
        f"In {len(ahead)} of {len(pairs)} rows the network of the joint run is at least as good as the one alone; in "
        f"{len(clear)} the 95 % interval of the difference lies above 0, in {len(behind)} below."
    )


def _chosen(pairs: Sequence[Pair]) -> list[str]:
    """The rows that stand in the table with another learning rate or warm-up than their plan's."""
    ways = ("alone", "jointly")
    names = dict.fromkeys(
        f"{pair.plan.says}, {pair.ratio}, {pair.level if way == 'alone' else 'both'} {way} ({cell})"
        for pair in pairs
        for way, row in zip(ways, pair.rows, strict=True)
        if (cell := row.partition(AT)[2])
    )
    return [f"Validation data chose another rate or warm-up for these: {'; '.join(names)}."] if names else []


def plain_pairs(folder: Path = RESULTS) -> list[Pair]:
    """The networks of plain alternation beside those alone, each at the rate that was chosen for it."""
    return [pair for pair in _stored_pairs(folder)[0] if pair.scheme == PLAIN]


def in_short(folder: Path = RESULTS) -> str:
    """In how many rows the network of the joint run is ahead of the one alone."""
    return verdict(plain_pairs(folder))


def other_rates(folder: Path = RESULTS) -> str:
    """The test scores of whole runs at each learning rate and warm-up, with the first seed."""
    with store.stored(folder) as found:
        return other_cells.section([(plan, runs) for plan, runs in found if isinstance(plan, Plan)])


def matched(folder: Path = RESULTS) -> str:
    """Small networks beside ordinary ones of as many parameters, or as fast."""
    with store.stored(folder) as found:
        return sizes.section(found, folder)


def regime_section(folder: Path = RESULTS) -> str:
    """The core alone and jointly by learning rate."""
    return regime.section(_regime_scores(folder))


def draw(to: Path, folder: Path = RESULTS) -> None:
    """Write the figure of the rates."""
    regime.draw(_regime_scores(folder), to)


def _regime_scores(folder: Path) -> dict[str, dict[float, float]]:
    with store.stored(folder) as found:
        of_regime = [plan.scores(runs) for plan, runs in found if isinstance(plan, regime.Regime)]
    return of_regime[0] if of_regime else {"core": {}, "joint": {}}


@final
@dataclass(frozen=True)
class Pair:
    """A network of a joint run and the same network alone, seed by seed."""

    plan: Plan
    ratio: str
    scheme: str
    level: str
    rows: tuple[str, str]
    """The rows of the network alone and of the joint run."""
    alone: Sequence[float]
    jointly: Sequence[float]
    flops_share: float
    """The FLOPs of the joint run as a share of those of all networks alone together."""

    @property
    def difference(self) -> paired.Difference:
        return paired.difference([a - b for a, b in zip(self.jointly, self.alone, strict=True)])

    def cells(self) -> tuple[str, ...]:
        return (
            self.plan.says,
            self.ratio,
            SCHEMES[self.scheme].says,
            self.level,
            str(len(self.alone)),
            tables.spread(self.alone),
            tables.spread(self.jointly),
            str(self.difference),
            f"{self.flops_share:.3f}",
        )


def ratio_place(pair: Pair) -> int:
    """The place of the pair's ratio in its plan."""
    return list(pair.plan.ratios).index(pair.ratio)


def _stored_pairs(folder: Path) -> tuple[list[Pair], list[Pair]]:
    """All pairs, at the rates and warm-ups that were chosen for them, and at those of the plans."""
    with store.stored(folder) as found:
        ours = [(plan, runs) for plan, runs in found if isinstance(plan, Plan)]
        tuned, untuned = (
            [pair for plan, runs in ours for pair in _pairs(plan, runs, is_tuned=is_tuned)]
            for is_tuned in (True, False)
        )
    return tuned, untuned


def _pairs(plan: Plan, folder: RunFolder, *, is_tuned: bool) -> Iterator[Pair]:
    for untuned in plan.comparisons():
        ratio, scheme = untuned.label.removeprefix("r = "), untuned.joint.partition("-")[0]
        comparison = other_cells.tuned(plan, folder, untuned, ratio) if is_tuned else untuned
        runs = equal_sum.common_seeds(folder, comparison)
        first = {run.settings.seed: total_flops(done) for run, done in folder.scored(first_row(scheme, ratio))}
        for level in comparison.alone if runs else ():
            yield Pair(
                plan,
                ratio,
                scheme,
                level,
                (comparison.alone[level], comparison.joint),
                [plan.factor * own[level][1]["levels"][FULL]["test"][plan.score] for _, own in runs.values()],
                [plan.factor * joint[1]["levels"][level]["test"][plan.score] for joint, _ in runs.values()],
                fmean(
                    (total_flops(joint[1]) + first.get(seed, 0.0)) / _together(own)
                    for seed, (joint, own) in runs.items()
                ),
            )


def _together(runs: Mapping[str, Scored]) -> float:
    """The FLOPs of the runs of all levels alone."""
    return sum(total_flops(summary) for _, summary in runs.values())
