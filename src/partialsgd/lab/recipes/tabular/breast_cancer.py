"""Measurements of cell nuclei that come with scikit-learn: 569 rows of 30 numbers, benign (1) or malignant (0)."""

from __future__ import annotations

import torch

from partialsgd.lab.recipes.tabular.tables import Schema, Table, Tables, tables
from partialsgd.lab.training.orders import permutation

TEST_SHARE = 0.2


def read(valid_share: float, seed: int) -> Tables:
    """The test rows are the same for every seed. The mean of each measurement is crossed with its worst value."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise ImportError("the breast-cancer data come with scikit-learn: pip install partialsgd[lab]") from error
    found = load_breast_cancer()
    names = tuple(str(name) for name in found.feature_names)
    means = [name.removeprefix("mean ") for name in names if name.startswith("mean ")]
    schema = Schema(names, (), tuple((f"mean {name}", f"worst {name}") for name in means))
    table = Table(torch.tensor(found.data, dtype=torch.float64), [()] * len(found.data), torch.tensor(found.target))
    order = permutation(len(table), "test")
    tested = round(TEST_SHARE * len(table))
    return tables(schema, table[order[:-tested]], table[order[-tested:]], valid_share, seed)
