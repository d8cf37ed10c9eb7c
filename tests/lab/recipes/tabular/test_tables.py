"""Splits of a table."""

from __future__ import annotations

import pytest
import torch

from partialsgd.lab.recipes.tabular.tables import Schema, Table, tables

SCHEMA = Schema(("x",), ("word",), ())


def numbered(count: int, labels: list[int] | None = None) -> Table:
    """Rows that say their place in every column."""
    places = torch.arange(count)
    found = places % 2 if labels is None else torch.tensor(labels)
    return Table(places.double()[:, None], [(str(i),) for i in range(count)], found)


def test_validation_is_a_share_of_the_known_rows_drawn_by_the_seed() -> None:
    first, again, other = (tables(SCHEMA, numbered(100), numbered(30), 0.1, seed) for seed in (0, 0, 1))
    assert (len(first.train), len(first.valid), len(first.test)) == (90, 10, 30)
    assert torch.equal(first.valid.numbers, again.valid.numbers)
    assert not torch.equal(first.valid.numbers.sort(0).values, other.valid.numbers.sort(0).values)
    both = torch.cat([first.train.numbers, first.valid.numbers]).flatten()
    assert torch.equal(both.sort().values, torch.arange(100).double())
    assert torch.equal(first.test.numbers, other.test.numbers)


def test_the_columns_of_a_row_stay_together() -> None:
    found = tables(SCHEMA, numbered(50), numbered(10), 0.2, 3)
    for part in (found.train, found.valid):
        places = part.numbers.flatten().long()
        assert [row[0] for row in part.categories] == [str(place) for place in places.tolist()]
        assert torch.equal(part.labels, places % 2)


def test_a_split_of_one_class_or_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="the test rows, 3 of them, are all of one class: AUC needs both"):
        tables(SCHEMA, numbered(50), numbered(3, [1, 1, 1]), 0.2, 0)
    with pytest.raises(ValueError, match="the valid rows, 1 of them, are all of one class"):
        tables(SCHEMA, numbered(10), numbered(10), 0.1, 0)
    with pytest.raises(ValueError, match=r"of 4 rows valid_share 0.1 takes 0; both parts need some"):
        tables(SCHEMA, numbered(4), numbered(10), 0.1, 0)
