"""Signal and noise of masked gradients: against sums written out, unbiased, exact where there is no noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.meters.objectives import Objective
from partialsgd.meters.spreads import Pair, Spread, point
from partialsgd.testing.problems import PROBLEMS, Problem
from tests.meters.test_objectives import EXACT, flatten, objective_of


def masks_of(objective: Objective) -> dict[str, Mask]:
    """All, none, a tensor, and elements."""
    parameters = objective.all_parameters
    first = next(iter(parameters))
    draw = torch.Generator().manual_seed(1)
    elements = {name: torch.rand(p.shape, generator=draw) < 0.4 for name, p in parameters.items()}
    return {
        "all": masks.everything(parameters),
        "nothing": masks.nothing(parameters),
        "first": masks.only(parameters, [first]),
        "elements": masks.from_tensors(parameters, elements),
    }


def flat(mask: Mask) -> Tensor:
    each = [torch.zeros(p.shape, dtype=torch.bool) | mask[name] for name, p in mask.parameters.items()]
    return torch.cat([entry.flatten() for entry in each]).double()


def spread(gradients: Tensor) -> Spread:
    """Of gradients given as rows."""
    mean = gradients.mean(0)
    apart = gradients - mean
    return Spread(float(mean @ mean), tuple(apart.square().sum(1).tolist()), tuple((apart @ mean).tolist()))


def assert_close(found: Pair, expected: Pair) -> None:
    assert found.signal == pytest.approx(expected.signal, rel=1e-4, abs=1e-9)
    assert found.noise == pytest.approx(expected.noise, rel=1e-4, abs=1e-9)


def written_out(g: Tensor) -> Pair:
    """The covariance's trace, and the mean product of the gradients of two different batches."""
    n, gram = len(g), g @ g.T
    return Pair(float((gram.sum() - gram.trace()) / (n * (n - 1))), float(g.var(0).sum()))


@pytest.mark.parametrize("problem", EXACT, ids=lambda p: p.name)
def test_a_point_is_the_covariance_and_the_products_of_different_batches(problem: Problem) -> None:
    objective = objective_of(problem, problem.model(), 6)
    named = masks_of(objective)
    found = point(objective, named)
    rows = torch.stack([flatten(objective.gradient(k)[1]).double() for k in range(6)])
    assert found.losses == tuple(objective.gradient(k)[0] for k in range(6))
    for name, mask in named.items():
        g = rows * flat(mask)
        assert_close(found.spreads[name].pair, written_out(g))
        for k in range(6):
            assert_close(found.spreads[name].without(k), written_out(torch.cat([g[:k], g[k + 1 :]])))
    assert found.spreads["nothing"].pair == Pair(0, 0)
    assert found.pairs(2) == {name: spread.without(2) for name, spread in found.spreads.items()}


def test_both_numbers_are_unbiased() -> None:
    """Without n/(n − 1) the noise of four batches would be a quarter too small, ‖ḡ‖² as much of it too large."""
    d, n, seeds, scale = 5, 4, 4000, 3.0
    truth, draw = torch.linspace(-1, 1, d, dtype=torch.float64), torch.Generator().manual_seed(0)
    noise = scale * torch.randn(seeds, n, d, dtype=torch.float64, generator=draw)
    found = torch.tensor([spread(truth + xi).pair for xi in noise], dtype=torch.float64)
    mean, error = found.mean(0), found.std(0) / seeds**0.5
    for k, true in enumerate((float(truth @ truth), d * scale**2)):
        assert abs(float(mean[k]) - true) < 4 * float(error[k])
    assert float(error[1]) < 0.02 * d * scale**2 and float(error[0]) < 0.1 * d * scale**2 / n
    assert float(found[:, 0].min()) < 0, "unbiased, so sometimes negative"


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.name != "unused"], ids=lambda p: p.name)
def test_the_whole_data_as_every_batch_has_no_noise_at_all(problem: Problem) -> None:
    model = problem.model().eval()  # in training, dropout is noise of its own
    objective = Objective(model, lambda t: problem.evaluate(model, t), [0] * 3)
    found = point(objective, masks_of(objective))
    gradient = flatten(objective.gradient(0)[1]).double()
    assert all(pair.noise == 0 for pair in found.pairs().values()) and all(
        pair.noise == 0 for pair in found.pairs(1).values()
    )
    assert found.spreads["all"].pair.signal == pytest.approx(float(gradient @ gradient))


def test_dropout_is_noise_too() -> None:
    problem = next(p for p in PROBLEMS if p.name == "batchnorm")
    model = problem.model().train()
    objective = Objective(model, lambda t: problem.evaluate(model, t), [0] * 3)
    assert point(objective, {"all": masks.everything(model)}).pairs()["all"].noise > 0


def test_one_batch_is_refused() -> None:
    problem = PROBLEMS[0]
    objective = objective_of(problem, problem.model(), 1)
    with pytest.raises(ValueError, match="one batch tells nothing about the noise"):
        point(objective, masks_of(objective))
