"""Rows for a network: what train says, and what it does not know."""

from __future__ import annotations

import torch

from partialsgd.lab.recipes.tabular.features import UNKNOWN, Features, Rows, features
from partialsgd.lab.recipes.tabular.tables import Schema, Table

SCHEMA = Schema(("age", "gain"), ("job", "town"), (("job", "town"), ("age", "job")))
TRAIN = Table(
    torch.tensor([[20.0, 5], [30, 5], [40, 5], [50, 5]], dtype=torch.float64),
    [("cook", "Bonn"), ("cook", "Ulm"), ("smith", "Ulm"), ("?", "Bonn")],
    torch.tensor([0, 1, 0, 1]),
)


def encoder() -> Features:
    return features(TRAIN, SCHEMA, buckets=2)


def encoded(age: float, job: str, town: str) -> Rows:
    return encoder().encode(Table(torch.tensor([[age, 5.0]], dtype=torch.float64), [(job, town)], torch.tensor([1])))


def test_numbers_are_standardised_by_train_and_a_constant_is_zero() -> None:
    rows = encoder().encode(TRAIN)
    torch.testing.assert_close(rows.numbers[:, 0], (torch.tensor([20.0, 30, 40, 50]) - 35) / 125**0.5)
    assert not rows.numbers[:, 1].any()
    torch.testing.assert_close(encoded(35 + 125**0.5, "cook", "Ulm").numbers, torch.tensor([[1.0, 0.0]]))
    assert rows.labels.tolist() == [0.0, 1.0, 0.0, 1.0] and rows.numbers.dtype is torch.float32


def test_each_value_of_each_column_has_a_number_of_its_own() -> None:
    rows, known = encoder().encode(TRAIN), encoder()
    assert rows.categories.shape == (4, 2) and rows.crosses.shape == (4, 4)
    assert len(known.words) == 1 + 3 + 2 and len(known.crossed) == 1 + 3 + 2 + 4 + 3
    for column, size in ((0, 3), (1, 2)):
        assert len(rows.categories[:, column].unique()) == size
    assert set(rows.categories[:, 0].tolist()).isdisjoint(rows.categories[:, 1].tolist()), "over all columns"
    assert UNKNOWN not in rows.categories and UNKNOWN not in rows.crosses
    assert int(rows.crosses.max()) < len(known.crossed) and int(rows.categories.max()) < len(known.words)


def test_what_train_does_not_have_is_unknown_and_a_missing_value_is_not() -> None:
    rows = encoded(20, "priest", "Ulm")
    assert rows.categories.tolist()[0][0] == UNKNOWN != rows.categories.tolist()[0][1]
    assert [number == UNKNOWN for number in rows.crosses.tolist()[0]] == [True, False, True, True]
    assert encoded(20, "?", "Bonn").categories.tolist() == encoder().encode(TRAIN).categories[3:].tolist()


def test_a_cross_is_known_if_train_has_it_together() -> None:
    rows = encoded(20, "smith", "Bonn")  # each is known, but smiths live in Ulm, and are not young
    assert [number == UNKNOWN for number in rows.crosses.tolist()[0]] == [False, False, True, True]


def test_numbers_are_crossed_by_halves_of_train() -> None:
    young, also, old = (encoded(age, "cook", "Bonn").crosses.tolist()[0][3] for age in (-5, 34.9, 35.1))
    assert young == also != old and old == UNKNOWN  # no old cook
    assert encoder().edges.tolist() == [[35.0], [5.0]]


def test_other_splits_change_nothing() -> None:
    """Vocabularies and numbers are of train alone, and the order of its rows does not matter."""
    turned = TRAIN[torch.tensor([3, 1, 0, 2])]
    a, b = encoder().encode(TRAIN), features(turned, SCHEMA, 2).encode(TRAIN)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_table_without_words_has_empty_categories() -> None:
    schema = Schema(("age", "gain"), (), (("age", "gain"),))
    table = Table(TRAIN.numbers, [()] * 4, TRAIN.labels)
    rows = features(table, schema, 2).encode(table)
    assert rows.categories.shape == (4, 0) and rows.crosses.shape == (4, 1)


def test_the_vocabulary_can_be_written_down() -> None:
    said = encoder().words.as_list()
    assert [number for _, _, number in said] == list(range(1, 6))
    assert {(place, value) for place, value, _ in said} == {
        *((0, job) for job in ("?", "cook", "smith")),
        *((1, town) for town in ("Bonn", "Ulm")),
    }
