"""The table of the study in docs/which_size.md: each way to go on, against the networks that were trained alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

from partialsgd.lab.reproduce import paired
from studies import pages
from studies.trained_start.train import FILE, TRAINED_RATE, Row, describe, stored
from studies.trained_start.ways import CORE_ALONE, FULL_ALONE, JOINT

_ALONE = {"core": CORE_ALONE, "full": FULL_ALONE}
DIGITS = 4
HEAD = ("way", "seeds", "core", "core, less alone", "full", "full, less alone", "rate")


def sections(file: Path = FILE) -> str:
    """A table for each axis and length; rows that were stored with other settings than today's are left out."""
    rows = shown(file)
    if not rows:
        return "No training is stored yet."
    parts = [f"The text is {rows[-1].text.rpartition(' ')[0]}. Every network was {rows[-1].settings}."]
    for (axis, length), group in groupby(rows, key=lambda row: (row.axis, row.length)):
        parts += [_title(axis, length, own := list(group)), pages.table(HEAD, _cells(own))]
    return "\n\n".join([*parts, *findings(rows), f"torch {rows[-1].torch}, {_dates(rows)}."])


def shown(file: Path = FILE) -> list[Row]:
    """The stored rows of one text and one set of settings: today's, if there are any."""
    rows = stored(file)
    about = ([row for row in rows if row.settings == describe()] or rows)[-1:]
    return [row for row in rows if (row.text, row.settings) == (about[0].text, about[0].settings)]


def differences(rows: Sequence[Row], axis: str, length: int, way: str) -> dict[str, paired.Difference]:
    """By level how much higher the loss of a way is than that of the network alone, seed by seed."""
    table = [row for row in rows if (row.axis, row.length) == (axis, length)]
    own = [row for row in table if row.way == way]
    found = {}
    for level, alone_way in _ALONE.items():
        losses = _losses(own, level)
        alone = _losses([row for row in table if row.way == alone_way], level)
        if common := [seed for seed in losses if seed in alone]:
            # Networks that are the same but for the order of their units differ by rounding.
            found[level] = paired.difference([round(losses[seed] - alone[seed], DIGITS) for seed in common])
    return found


def steps_and_rate(rows: Sequence[Row], axis: str, length: int, way: str) -> tuple[str, str]:
    """The steps of a way, and the rates that validation chose for it as factors of the rate of the first training."""
    own = [row for row in rows if (row.axis, row.length, row.way) == (axis, length, way)]
    steps, *others = sorted({row.steps for row in own})
    factors = [_factors(row.rate for row in own), _factors(row.full_rate for row in own if row.full_rate is not None)]
    texts = [f"{factors[0]} × the first", *([f"full {factors[1]} ×"] if factors[1] else [])]
    return f"{steps:,}" + (f" to {others[-1]:,}" if others else ""), ", ".join(texts)


def _factors(rates: Iterable[float]) -> str:
    return " to ".join(f"{rate / TRAINED_RATE:.2g}" for rate in sorted(set(rates)))


def _title(axis: str, length: int, rows: Sequence[Row]) -> str:
    sizes = rows[0].parameters
    starts = {row.seed: row.start for row in rows}.values()
    before = {level: fmean(start[level] for start in starts) for level in _ALONE}
    return (
        f"**By {axis}, {length} steps for each network alone, and as many FLOPs for both jointly.** The core has "
        f"{sizes['core'] / sizes['full']:.0%} of the parameters. Before this training the network had "
        f"{before['full']:.3f} bits for each character, and the core as it is cut out {before['core']:.3f}."
    )


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    cells = []
    for way in (CORE_ALONE, FULL_ALONE, *JOINT):
        own = [row for row in rows if row.way == way]
        if not own:
            continue
        known = {} if way in _ALONE.values() else differences(rows, own[0].axis, own[0].length, way)
        pairs = [(_mean(_losses(own, level)), str(known[level]) if level in known else "–") for level in _ALONE]
        cells.append((way, str(len(own)), *(cell for pair in pairs for cell in pair), _rates(own)))
    return cells


def _rates(rows: Sequence[Row]) -> str:
    """The rates that validation chose; where each level has one, the core's and the full network's."""
    texts = [f"{rate:g}" for rate in sorted({row.rate for row in rows})]
    full_rates = [f"{rate:g}" for rate in sorted({row.full_rate for row in rows if row.full_rate is not None})]
    return ", ".join(texts) + (f"; full {', '.join(full_rates)}" if full_rates else "")


def _losses(rows: Sequence[Row], level: str) -> dict[int, float]:
    return {row.seed: row.test[level] for row in rows if level in row.test}


def _mean(losses: Mapping[int, float]) -> str:
    return f"{fmean(losses.values()):.3f}" if losses else "–"


def findings(rows: Sequence[Row]) -> list[str]:
    """For each joint way in how many tables each network is at least as good as alone."""
    tables = list(dict.fromkeys((row.axis, row.length) for row in rows))
    sentences = []
    for way in JOINT:
        known = [each for axis, length in tables if (each := differences(rows, axis, length, way))]
        if known and all(set(each) == set(_ALONE) for each in known):
            parts = [
                f"the {level} in {sum(each[level].mean <= 0 for each in known)} of {len(known)}" for level in _ALONE
            ]
            sentences.append(
                f"- {way[:1].upper()}{way[1:]}: at least as good as alone is {' and '.join(parts)} tables."
            )
    return ["\n".join(sentences)] if sentences else []


def _dates(rows: Sequence[Row]) -> str:
    first, last = min(row.date for row in rows), max(row.date for row in rows)
    return first if first == last else f"{first} to {last}"
