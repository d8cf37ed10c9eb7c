"""AUC, and the outputs that it is taken of."""

from __future__ import annotations

import itertools

import pytest
import torch

import partialsgd as ps
from partialsgd.lab.recipes.tabular import scores
from partialsgd.lab.recipes.tabular.features import Rows
from partialsgd.lab.recipes.tabular.network import Deep, Wide, inputs_of, wide_and_deep


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
