"""A corpus has one digest, which everything in it decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partialsgd.lab.recipes.translation.corpus import SPLITS, Corpus, Pair, corpus_hash

CORPUS = Corpus(
    "en", "de", {"train": [("a b", "c"), ("d", "e")], "valid": [("f", "g")], "test": [("h", "i")]}, ("a note",)
)


def with_split(split: str, pairs: list[Pair]) -> Corpus:
    return replace(CORPUS, splits={**CORPUS.splits, split: pairs})


@pytest.mark.parametrize(
    "other",
    [
        replace(CORPUS, source="fr"),
        replace(CORPUS, target="fr"),
        replace(CORPUS, source="de", target="en"),
        with_split("train", [("a ", "bc"), ("d", "e")]),
        with_split("train", [("d", "e"), ("a b", "c")]),
        with_split("train", [("a b", "c"), ("e", "d")]),
        with_split("train", [("a b", "c")]),
        with_split("valid", [("f", "g"), ("h", "i")]),
        replace(CORPUS, splits={**CORPUS.splits, "valid": [("h", "i")], "test": [("f", "g")]}),
        replace(CORPUS, splits={**CORPUS.splits, "train": [*CORPUS.splits["train"], ("f", "g")], "valid": []}),
    ],
)
def test_another_corpus_has_another_corpus_hash(other: Corpus) -> None:
    assert corpus_hash(other) != corpus_hash(CORPUS)


def test_an_equal_corpus_has_the_same_digest_whatever_its_notes() -> None:
    reordered = {split: list(CORPUS.splits[split]) for split in reversed(SPLITS)}
    assert corpus_hash(replace(CORPUS, splits=reordered, notes=())) == corpus_hash(CORPUS)


def test_a_text_is_not_taken_for_the_name_of_a_split() -> None:
    later = {"train": [("a", "valid")], "valid": [("x", "valid"), ("p", "q")], "test": []}
    earlier = {"train": [("a", "valid"), ("valid", "x")], "valid": [("p", "q")], "test": []}
    assert corpus_hash(replace(CORPUS, splits=later)) != corpus_hash(replace(CORPUS, splits=earlier))
