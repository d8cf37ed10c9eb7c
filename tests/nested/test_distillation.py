"""The loss against a teacher."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from partialsgd import soft_cross_entropy


def test_it_is_torchs_cross_entropy_with_soft_targets_and_does_not_pull_the_teacher() -> None:
    outputs = torch.randn(5, 4, requires_grad=True)
    teacher = torch.randn(5, 4, requires_grad=True)
    loss = soft_cross_entropy(outputs, teacher)
    torch.testing.assert_close(loss, F.cross_entropy(outputs, teacher.softmax(-1)))
    loss.backward()
    assert teacher.grad is None and outputs.grad is not None


def test_temperature_keeps_the_size_of_the_gradient() -> None:
    """Hinton et al.: at a high temperature the gradient times T² tends to that of matching logits."""
    outputs, teacher = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    (hot,) = torch.autograd.grad(soft_cross_entropy(outputs, teacher, temperature=1e3), outputs)
    centred = [y - y.mean(-1, keepdim=True) for y in (outputs.detach(), teacher)]
    torch.testing.assert_close(hot, (centred[0] - centred[1]) / (4 * 3), rtol=0.05, atol=1e-4)


def test_unequal_shapes_and_cold_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and teacher outputs of shape \(2, 4\)"):
        soft_cross_entropy(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="positive"):
        soft_cross_entropy(torch.ones(2, 3), torch.ones(2, 3), temperature=0)
