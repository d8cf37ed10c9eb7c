"""Uphill, to distance rho."""

from __future__ import annotations

import pytest
import torch

from partialsgd import methods
from tests.methods.test_extragradient import points


def test_the_point_is_at_distance_rho_uphill() -> None:
    for rho in (0.01, 0.5):
        seen, model = points(methods.sam(rho))
        delta, gradient = seen[1] - seen[0], model.h * (seen[0] - model.c)
        assert float(delta.norm()) == pytest.approx(rho, rel=1e-4)
        assert float(torch.dot(delta, gradient) / delta.norm() / gradient.norm()) == pytest.approx(1.0, abs=1e-5)


def test_adaptive_distance_is_rho_relative_to_the_weights() -> None:
    """δ = ρ x² g / ‖|x| g‖, so that ‖δ / |x|‖ = ρ where no weight is zero."""
    seen, model = points(methods.sam(0.5, adaptive=True))
    x, gradient = seen[0], model.h * (seen[0] - model.c)
    delta = seen[1] - x
    torch.testing.assert_close(delta, 0.5 * x**2 * gradient / (x.abs() * gradient).norm())
    assert float((delta / x.abs()).norm()) == pytest.approx(0.5, rel=1e-4)


def test_rho_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="rho must not be negative"):
        methods.sam(-0.1)
