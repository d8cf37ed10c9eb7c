"""Pairs of sentences in two languages, in three splits: plain text, as a reader would write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from partialsgd.lab.recipes.translation import kept

Pair: TypeAlias = tuple[str, str]

SPLITS = ("train", "valid", "test")


@final
@dataclass(frozen=True)
class Corpus:
    """What a model translates from and to.

    The text of the splits is never tokenised: who makes a corpus of tokenised text joins it again. So a score is
    computed on the text as it is, and a translated line is what a reader expects.
    """

    source: str
    """The language code, or the locale, of the first of each pair."""
    target: str
    splits: dict[str, list[Pair]]
    """The pairs of "train", "valid" and "test"."""
    notes: tuple[str, ...] = ()
    """What its user should be told: what was dropped, joined or left out, with counts."""


def digest(corpus: Corpus) -> str:
    """A hash of the languages and of all text; the notes do not count."""
    parts = [corpus.source, corpus.target]
    for split in SPLITS:
        pairs = corpus.splits[split]
        parts += [split, str(len(pairs)), *(text for pair in pairs for text in pair)]
    return kept.key(*parts)
