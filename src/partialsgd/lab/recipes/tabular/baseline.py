"""A yardstick: what a logistic regression makes of the features that the wide part gets."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from partialsgd.lab.recipes.tabular import scores
from partialsgd.lab.recipes.tabular.features import UNKNOWN, Rows
from partialsgd.lab.training.task import Numbers


def logistic_regression(train: Rows, test: Rows, crosses: int) -> Numbers:
    """scikit-learn's, as it is set by default. `crosses` is how many numbers a cross may have."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=300)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "lbfgs failed to converge")  # near enough, for a yardstick
        model.fit(_design(train, crosses), train.labels.numpy())
    return scores.numbers(torch.from_numpy(model.decision_function(_design(test, crosses))), test.labels)


def _design(rows: Rows, crosses: int) -> Any:
    """The numbers, and a column of 0 and 1 for each cross that train has: sparse, for most are 0."""
    from scipy import sparse  # type: ignore[import-untyped]  # it comes with scikit-learn

    row, column = (rows.crosses != UNKNOWN).nonzero(as_tuple=True)
    place = rows.crosses[row, column]
    shape = (len(rows.labels), crosses)
    ones = sparse.csr_matrix((torch.ones(len(row)).double().numpy(), (row.numpy(), place.numpy())), shape=shape)
    return sparse.hstack([sparse.csr_matrix(rows.numbers.double().numpy()), ones], format="csr")
