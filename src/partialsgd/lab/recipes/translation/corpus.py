"""A parallel corpus: pairs of sentences in two languages, as plain text in three splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from partialsgd._util.files import sha256

Pair: TypeAlias = tuple[str, str]

SPLITS = ("train", "valid", "test")


@final
@dataclass(frozen=True)
class Corpus:
    """The splits of a corpus. Their text is never tokenised, so that scores are computed on text as people write it."""

    source: str
    """The language code or locale of the first sentence of each pair."""
    target: str
    splits: dict[str, list[Pair]]
    """The pairs of "train", "valid" and "test"."""
    notes: tuple[str, ...] = ()
    """Lines for the user: what was dropped, joined or left out, with counts."""


def corpus_hash(corpus: Corpus) -> str:
    """Hash the languages and all text."""
    parts = [corpus.source, corpus.target]
    for split in SPLITS:
        pairs = corpus.splits[split]
        parts += [split, str(len(pairs)), *(text for pair in pairs for text in pair)]
    return sha256(*parts)
