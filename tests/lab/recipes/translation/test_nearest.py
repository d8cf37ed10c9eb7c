"""The baseline without a network."""

from __future__ import annotations

import pytest

from partialsgd.lab.recipes.translation import nearest

TRAIN = [
    ("3 apples", "3 Äpfel"),
    ("3 apples and 2 pears", "3 Äpfel und 2 Birnen"),
    ("March 3, 2020", "3. März 2020"),
    ("3 apples", "drei Äpfel"),
]


@pytest.mark.parametrize(
    ("line", "copied"),
    [
        ("3 apples", "3 Äpfel"),  # of two that are equally near the first
        ("7 apples and 2 pears", "3 Äpfel und 2 Birnen"),
        ("March 9, 2020", "3. März 2020"),
        ("nothing in common", "3 Äpfel"),  # all are equally far
        ("", "3 Äpfel"),
    ],
)
def test_the_translation_of_the_nearest_is_copied(line: str, copied: str) -> None:
    assert nearest.copied(TRAIN, [line]) == [copied]


def test_order_of_words_counts_not_only_which_they_are() -> None:
    train = [("dog bites man", "1"), ("man bites dog", "2")]
    assert nearest.copied(train, ["a man bites dog", "a dog bites man"]) == ["2", "1"]


def test_blocks_give_what_all_at_once_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    train = [(f"{n} of {n * n}", str(n)) for n in range(50)]
    lines = [f"{n} of {n * n + 1}" for n in range(0, 50, 3)]
    whole = nearest.copied(train, lines)
    monkeypatch.setattr(nearest, "_BLOCK", 4)
    assert nearest.copied(train, lines) == whole and len(set(whole)) > 10


def test_of_a_large_corpus_evenly_spaced_pairs_are_looked_at() -> None:
    pairs = [(str(n), str(n)) for n in range(10)]
    assert [source for source, _ in nearest.spaced(pairs, 4)] == ["0", "2", "5", "7"]
    assert nearest.spaced(pairs, 10) is pairs


def test_without_training_phrases_it_says_so() -> None:
    with pytest.raises(ValueError, match="no training phrase"):
        nearest.copied([], ["a"])
