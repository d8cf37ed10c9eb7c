"""Accuracy, by class and where two networks disagree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import partialsgd as ps
from partialsgd.lab.recipes.images import task as scores
from partialsgd.lab.recipes.images.data import Standardise
from partialsgd.lab.recipes.images.resnet import resnet

LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
NAMES = ("cat", "dog", "frog", "ship")


def saying(*classes: int) -> Tensor:
    """Outputs whose largest is that of these classes."""
    return 3.0 * F.one_hot(torch.tensor(classes), len(NAMES))


def test_loss_and_accuracy_are_means_over_the_images() -> None:
    said = saying(0, 1, 0, 1, 1, 3)
    found = scores.loss_and_accuracy(said, LABELS)
    assert found["accuracy"] == pytest.approx(4 / 6)
    each = [-F.log_softmax(row.double(), 0)[label].item() for row, label in zip(said, LABELS, strict=True)]
    assert found["loss"] == pytest.approx(sum(each) / 6)


def test_a_class_without_images_has_no_accuracy() -> None:
    found = scores.accuracy_by_class(saying(0, 1, 0, 1, 1, 3), LABELS, NAMES)
    assert found == {"accuracy/cat": pytest.approx(2 / 3), "accuracy/dog": 1.0, "accuracy/frog": 0.0}


def test_disagreement_counts_who_is_right_in_all_and_by_class() -> None:
    core, full = saying(0, 0, 1, 1, 0, 3), saying(0, 1, 0, 1, 1, 0)
    rows = scores.disagreement("core", core, full, LABELS, NAMES)
    names = ("both right", "only core right", "only full right", "both wrong")
    assert {row["class"]: tuple(row[name] for name in names) for row in rows} == {
        "all": (2, 1, 2, 1),
        "cat": (1, 1, 1, 0),
        "dog": (1, 0, 1, 0),
        "frog": (0, 0, 0, 1),
        "ship": (0, 0, 0, 0),
    }


def test_outputs_are_those_of_the_level_in_evaluation_and_nothing_moves() -> None:
    torch.manual_seed(0)
    network = ps.nest(resnet((1, 1), 4, channels=1), ps.Width(1 / 2)).train()
    images = torch.randint(17, (300, 1, 8, 8), dtype=torch.uint8)  # more than go at once
    standard = Standardise(images)
    for level in network.levels:
        with network.at(level):
            network(standard(images))  # statistics of its own
    network.model.get_submodule("stages.0").eval()
    modes = [module.training for module in network.modules()]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for level in network.levels:
        found = scores.outputs(network, level, images, standard)
        torch.testing.assert_close(found, network.extract(level).eval()(standard(images)), rtol=1e-4, atol=1e-5)
    assert [module.training for module in network.modules()] == modes and network.level == "full"
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
