"""The embedded table."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer

from partialsgd.lab.recipes.tabular import breast_cancer


def test_all_rows_are_there_once_and_the_test_rows_are_the_same_for_every_seed() -> None:
    first, other = breast_cancer.read(0.1, 0), breast_cancer.read(0.1, 1)
    parts = (first.train, first.valid, first.test)
    assert [len(part) for part in parts] == [409, 46, 114]
    assert torch.equal(first.test.numbers, other.test.numbers) and not torch.equal(
        first.valid.numbers, other.valid.numbers
    )
    published = load_breast_cancer()
    ours = torch.cat([torch.cat([part.numbers, part.labels[:, None]], 1) for part in parts])
    theirs = torch.cat([torch.tensor(published.data), torch.tensor(published.target)[:, None]], 1)
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


def test_each_mean_is_crossed_with_its_worst_value() -> None:
    schema = breast_cancer.read(0.1, 0).schema
    assert len(schema.crosses) == 10 and schema.crosses[0] == ("mean radius", "worst radius")
    assert {name for cross in schema.crosses for name in cross} <= set(schema.numbers) and schema.categories == ()
