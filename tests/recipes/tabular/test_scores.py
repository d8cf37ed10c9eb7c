"""AUC, and the yardstick beside it."""

from __future__ import annotations

import itertools

import pytest
import torch
from sklearn.linear_model import LogisticRegression

import partialsgd as ps
from partialsgd.recipes.tabular import baseline, scores
from partialsgd.recipes.tabular.features import UNKNOWN, Rows
from partialsgd.recipes.tabular.network import Deep, Wide, inputs_of, wide_and_deep


def test_auc_is_how_often_a_row_of_class_1_is_ranked_above_one_of_class_0() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(40).double(), (torch.rand(40) < 0.4).float()
    logits[5] = logits[6]
    pairs = list(itertools.product(logits[labels == 1].tolist(), logits[labels == 0].tolist()))
    found = scores.numbers(logits, labels)
    assert found["AUC"] == pytest.approx(sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs))
    assert found["accuracy"] == pytest.approx(float(((logits > 0).float() == labels).float().mean()))
    chance = torch.where(labels == 1, logits.sigmoid(), 1 - logits.sigmoid())
    assert found["loss"] == pytest.approx(float(-chance.log().mean()))


def test_outputs_are_those_of_the_level_in_evaluation_and_modes_stay() -> None:
    torch.manual_seed(0)
    deep, wide = Deep(3, 2, 7, embedding=4, hidden=5, layers=1), Wide(3, 9)
    torch.nn.init.normal_(wide.crosses.weight)
    deep.mlp.insert(0, torch.nn.Dropout(0.5))
    network = ps.nest(wide_and_deep(deep, wide)).train()
    rows = Rows(torch.randn(6, 3), torch.randint(9, (6, 4)), torch.randint(7, (6, 2)), torch.zeros(6))
    core, full = (scores.outputs(network, level, rows) for level in network.levels)
    assert all(module.training for module in network.modules()) and network.level == "full"
    network.eval()
    torch.testing.assert_close(core, deep(rows.numbers, rows.categories).double())
    torch.testing.assert_close(full, network(*inputs_of(rows)).double())


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
