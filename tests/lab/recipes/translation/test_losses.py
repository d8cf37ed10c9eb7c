"""The loss of a batch: by definition, over the real tokens alone."""

from __future__ import annotations

import math

import pytest
import torch

from partialsgd import soft_cross_entropy
from partialsgd.lab.recipes.translation import losses
from partialsgd.lab.recipes.translation.tokens import TokenBatch, in_order
from tests.lab.recipes.translation.tiny import VOCABULARY, family

PAIRS = [([5, 6, 7, 1], [8, 9, 1]), ([5, 1], [9, 10, 11, 12, 1]), ([7, 8, 1], [3, 1])]


def batch() -> TokenBatch:
    ((_, made),) = in_order(PAIRS, 1000)
    return made


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_the_sum_over_real_tokens_against_smoothed_targets(smoothing: float) -> None:
    labels = batch()["labels"]
    logits = torch.randn(*labels.shape, VOCABULARY, dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for row, line in enumerate(labels.tolist()):
        for place, label in enumerate(line):
            if label != -100:
                target = torch.full((VOCABULARY,), smoothing / VOCABULARY, dtype=torch.float64)
                target[label] += 1 - smoothing
                expected -= (target * torch.log_softmax(logits[row, place], -1)).sum()
    torch.testing.assert_close(losses.cross_entropy(logits, labels, smoothing), expected)


def test_distilled_is_the_sum_over_real_tokens() -> None:
    labels = batch()["labels"]
    logits, teacher = torch.randn(2, *labels.shape, VOCABULARY, dtype=torch.float64)
    expected = sum(soft_cross_entropy(logits[i, j], teacher[i, j]) for i, j in (labels != -100).nonzero().tolist())
    torch.testing.assert_close(losses.distillation(logits, teacher, labels), expected)


def test_likelihood_is_the_mean_over_tokens_whatever_the_batches() -> None:
    network = family().train()
    one, each = [batch()], [made for _, made in in_order(PAIRS, 5)]
    assert len(each) == 3
    numbers = losses.likelihood(network.model, one)
    assert numbers["loss"] == pytest.approx(losses.likelihood(network.model, each)["loss"], rel=1e-5)
    assert numbers["perplexity"] == pytest.approx(math.exp(numbers["loss"]))
    network.eval()
    logits = losses.run(network, batch()).logits
    assert numbers["loss"] == pytest.approx(
        float(losses.cross_entropy(logits, batch()["labels"]).detach()) / 10, rel=1e-5
    )


def test_likelihood_leaves_modes_gradients_and_noise_as_they_were() -> None:
    network = family().train()
    network.model.get_submodule("model.encoder.layers.0").eval()
    modes, noise = [m.training for m in network.modules()], torch.get_rng_state()
    losses.likelihood(network.model, [batch()])
    assert [m.training for m in network.modules()] == modes and torch.equal(torch.get_rng_state(), noise)
    assert all(p.grad is None for p in network.parameters())
