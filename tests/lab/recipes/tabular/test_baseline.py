"""The yardstick of the tables."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from partialsgd.lab.recipes.tabular import baseline, scores
from partialsgd.lab.recipes.tabular.features import UNKNOWN, Rows


def test_the_yardstick_is_a_logistic_regression_on_numbers_and_known_crosses() -> None:
    torch.manual_seed(0)

    def made(count: int) -> Rows:
        crosses = torch.stack([torch.randint(0, 3, (count,)), torch.randint(3, 6, (count,))], 1)
        numbers = torch.randn(count, 2)
        logits = numbers[:, 0] + 2.0 * (crosses[:, 0] == 1) - 2.0 * (crosses[:, 1] == 4)
        return Rows(numbers, crosses, crosses[:, :0], (torch.rand(count) < logits.sigmoid()).float())

    train, test = made(300), made(200)

    def dense(rows: Rows) -> torch.Tensor:
        known = torch.stack([(rows.crosses == k).any(1) for k in range(6) if k != UNKNOWN], 1)
        return torch.cat([rows.numbers, known.float()], 1).double()

    model = LogisticRegression(max_iter=300).fit(dense(train).numpy(), train.labels.numpy())
    expected = scores.numbers(torch.from_numpy(model.decision_function(dense(test).numpy())), test.labels)
    found = baseline.logistic_regression(train, test, 6)
    assert found == pytest.approx(expected, abs=1e-3) and found["AUC"] > 0.75


def test_a_cross_that_train_has_not_says_nothing() -> None:
    """Of 3 rows alike but for a cross, the unknown one is judged by the numbers alone."""
    torch.manual_seed(0)
    numbers, crosses = torch.randn(200, 1), torch.randint(1, 3, (200, 1))
    labels = (crosses[:, 0] == 1).float()
    train = Rows(numbers, crosses, crosses[:, :0], labels)
    found = torch.tensor([[1], [2], [UNKNOWN]])
    design = baseline._design(Rows(torch.zeros(3, 1), found, found[:, :0], torch.zeros(3)), 3)
    assert design.toarray().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert baseline.logistic_regression(train, train, 3)["accuracy"] == 1.0
