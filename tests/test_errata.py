"""Numbers that show what is wrong or loose in the paper; docs/errata.md names the test of each erratum."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd import LowRank, Method, PartialSGD, Width, masks, methods, nest, theory
from partialsgd.lab.recipes.images.resnet import resnet18
from partialsgd.meters.criteria import criteria
from partialsgd.vectors import Vector
from tests.functions import Noise, backward, every, masked, moved, quadratic, train

PAGE = Path(__file__).parents[1] / "docs" / "errata.md"
FLOAT = {"dtype": torch.float64}


def test_every_erratum_has_a_section_and_but_for_typography_a_test() -> None:
    """test_docs.py checks that the named tests exist."""
    titles, sections = re.split(r"^## (E\d+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:], {}
    for title, section in zip(titles[::2], titles[1::2], strict=True):
        sections[title] = section
    assert list(sections) == [f"E{number}" for number in range(1, 24)]
    assert [title for title, section in sections.items() if not re.search(r"`tests/[\w/]+\.py::test_", section)] == [
        "E23"
    ]
    on_page = set(re.findall(r"`tests/test_errata\.py::(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert on_page == {name for name in globals() if re.match(r"test_e\d", name)}


def step(x: Tensor, method: Method, gradient: Callable[[Tensor], Tensor], *, gamma: float = 1.0) -> Tensor:
    """x_{t+1} after one step with this stochastic gradient at x̃."""
    model = nn.ParameterDict({"x": nn.Parameter(x.clone())})
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), gamma), method)

    sgd.step(lambda: backward((gradient(model["x"].detach()) * model["x"]).sum()))
    return model["x"].detach()


def mean(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)


def test_e2_top_k_of_the_noisy_gradient_can_go_uphill_on_average() -> None:
    """f = ½‖x‖² at (1, 0.1). Nine batches of ten show 2 in the first coordinate, the tenth −8: the mean is 1.

    The second shows 0.1 ± 2.5 and is the larger one, but for the tenth batch: the first moves only when it is wrong.
    """
    x = torch.tensor([1.0, 0.1], **FLOAT)
    batches = [torch.tensor([a, 0.1 + b], **FLOAT) for a in [2.0] * 9 + [-8.0] for b in (-2.5, 2.5)]
    torch.testing.assert_close(mean(batches), x)  # the noise has mean zero: E g = ∇f = x
    by_noise = x - mean(step(x, methods.top_k(0.5), lambda _, g=g: g) for g in batches)
    torch.testing.assert_close(by_noise, torch.tensor([-0.8, 0.09], **FLOAT))
    assert float(by_noise @ x) < 0, "E[p ⊙ g] points uphill"
    before = Method(mask=masked(lambda c: torch.tensor([True, False])))  # the largest of the true gradient
    by_truth = x - mean(step(x, before, lambda _, g=g: g) for g in batches)
    torch.testing.assert_close(by_truth, torch.tensor([1.0, 0.0], **FLOAT))


def test_e2_a_perturbation_by_the_same_batch_can_go_uphill_on_average() -> None:
    """f = ½x² and g = (1 ± 2) x: M = 4. Extragradient with ηL = 0.4 by the true gradient is a step of 0.6 x.

    By the batch's own gradient it is E[(1 ± 2)(1 − 0.4 (1 ± 2))] x = (1 − 0.4 · 5) x = −x.
    """
    x = torch.tensor([1.0], **FLOAT)
    signs = (3.0, -1.0)
    shared = mean(x - step(x, methods.extragradient(0.4), lambda at, s=s: s * at) for s in signs)
    torch.testing.assert_close(shared, -x)
    by_truth = Method(perturb=moved(lambda c: -0.4 * c.parameters["x"].detach()))
    torch.testing.assert_close(mean(x - step(x, by_truth, lambda at, s=s: s * at) for s in signs), 0.6 * x)


def test_e5_a_step_of_one_over_2l_is_at_the_edge_of_assumption_3_and_not_within() -> None:
    """f = L/2 x²: ‖δx‖/max{‖G‖, ‖G̃‖} is exactly 1/(2L), and c_sim is 2. Uphill, as printed, it is within."""
    L, x = 3.0, 2.0
    for sign, is_within in ((-1, False), (+1, True)):
        at = x + sign / (2 * L) * L * x
        ratio = abs(at - x) / max(L * abs(x), L * abs(at))
        assert (ratio < 1 / (2 * L)) is is_within
    assert L * x / (L * (x - x / 2)) == theory.lemma_bounds().c_sim


def test_e11_the_mean_of_the_ratio_is_not_one_over_mu() -> None:
    """Over all masks of 10 coordinates, equal or with a larger one, but the empty mask, whose ratio is infinite."""
    drawn = torch.tensor(list(itertools.product((0.0, 1.0), repeat=10)), **FLOAT)[1:]
    for mu, others, expected in ((0.5, 1.0, 2.291), (0.5, 0.1, 14.595), (0.9, 1.0, 1.126)):
        g = torch.cat([torch.ones(1, **FLOAT), torch.full((9,), others, **FLOAT)])
        kept = drawn.sum(1)
        weights = mu**kept * (1 - mu) ** (10 - kept)
        masked_squares = (drawn * g**2).sum(1)
        total = g.square().sum()
        assert float((weights * masked_squares).sum() / total) == pytest.approx(mu), "E‖p ⊙ G‖² = μ ‖G‖² is right"
        ratio = float((weights * total / masked_squares).sum() / weights.sum())
        assert ratio == pytest.approx(expected, rel=1e-3) and ratio > 1 / mu


def test_e12_torchs_dropout_draws_for_each_example_and_rescales() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = F.dropout(torch.ones(64, 50), p=0.2)
    assert set(out.unique().tolist()) == {0.0, 1.25}, "p is the share that goes, and the rest is divided by what stays"
    assert len({tuple(row.tolist()) for row in out}) == 64


def test_e12_rescaling_moves_the_weights_and_multiplies_their_gradient() -> None:
    """x̃ = (p/μ) ⊙ x is δx = (p/μ − 1) ⊙ x, and by the chain rule the gradient is (p/μ) ⊙ ∇f(x̃)."""
    f = quadratic(0.5, 1.0, 2.0, centre=torch.tensor([1.0, -2.0, 0.5], **FLOAT))
    p, mu = torch.tensor([1.0, 0.0, 1.0], **FLOAT), 0.8
    x = torch.tensor([0.3, 0.7, -1.1], requires_grad=True, **FLOAT)
    (found,) = torch.autograd.grad(f.value((p / mu * x)[None]).sum(), x)
    at = x.detach() + (p / mu - 1) * x.detach()
    torch.testing.assert_close(found, p * f.gradient(at[None])[0] / mu)


def test_e13_dropped_weights_meet_assumption_3_only_far_from_a_stationary_point() -> None:
    """It needs ‖p ⊙ G‖ > L ‖δx‖, since ‖p ⊙ G̃‖ ≤ ‖p ⊙ G‖ + L ‖δx‖: near a minimum the dropped weights must be ≈ 0."""
    centre = torch.tensor([1.0, -2.0, 0.5, 1.5], **FLOAT)
    f, g = quadratic(0.4, 1.0, 1.6, 2.0, centre=centre), torch.Generator().manual_seed(0)
    p = torch.rand(4000, 4, generator=g) < 0.5
    p = p[p.any(1) & ~p.all(1)]
    for distance, is_ever in ((0.05, False), (1.0, True)):
        x = centre + distance * torch.randn(p.shape, generator=g, **FLOAT)
        delta, u, v = (~p * x).norm(dim=1), (p * f.gradient(x)).norm(dim=1), (p * f.gradient(p * x)).norm(dim=1)
        held = delta / torch.maximum(u, v) < 1 / (2 * f.smoothness)
        assert bool((u[held] > f.smoothness * delta[held]).all())
        assert bool(held.any()) is is_ever and float(held.double().mean()) < 0.1


def transformer() -> nn.Module:
    """One encoder and one decoder layer in the sizes of the paper's WMT17 network."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=32, d_model=512, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, pad_token_id=1, eos_token_id=0, decoder_start_token_id=1,
        forced_eos_token_id=None, max_position_embeddings=8,
    )  # fmt: skip
    return MarianMTModel(config)


def weights(nested, pattern: Callable[[str], bool], level: str) -> int:
    """Entries of matrices in the layers; embeddings and biases are left out."""
    inside = set(nested.parameters(level=level))
    return sum(
        p.numel()
        for n, p in nested.named_parameters()
        if ".layers." in n and p.ndim == 2 and pattern(n) and p in inside
    )


def test_e15_half_the_width_is_not_half_the_parameters() -> None:
    nested = nest(transformer(), Width(1 / 2, query_key=True))
    share = weights(nested, lambda n: True, "core") / weights(nested, lambda n: True, "full")
    assert share == pytest.approx(0.607, abs=1e-3), (
        "of the Transformer, in which only queries, keys and FFN are narrowed"
    )
    whole, half = (sum(p.numel() for p in resnet18(width=w).parameters()) for w in (64, 32))
    assert half / whole == pytest.approx(0.25, abs=1e-3), "of ResNet-18"


def test_e16_rank_one_64th_and_width_one_32nd_have_not_the_same_number_of_parameters() -> None:
    narrow = nest(transformer(), Width(1 / 32, query_key=True))
    low = nest(transformer(), LowRank(1 / 64, where=("*.fc1", "*.fc2", "*.q_proj", "*.k_proj"), init="zero"))

    def count(nested, *layers: str) -> int:
        return weights(nested, lambda n: ".encoder." in n and any(f".{layer}." in n for layer in layers), "core")

    assert count(low, "q_proj", "k_proj") == count(narrow, "q_proj", "k_proj") == 16_384
    assert (count(low, "fc1", "fc2"), count(narrow, "fc1", "fc2")) == (40_960, 65_536)


def test_e18_the_noise_must_be_bounded_at_the_perturbed_point() -> None:
    """E‖ξ‖² = M ‖∇f(x)‖², at x_t and not at x̃_t, where extragradient finds a shorter gradient: Lemma 3 breaks."""
    f, M = quadratic(2.0, centre=torch.zeros(1, **FLOAT)), 20.0
    x = torch.ones(4, 1, **FLOAT)
    method = Method(perturb=moved(lambda c: -0.4 / 2.0 * f.gradient(c.parameters["x"].detach())))
    gamma = 1 / (2.0 * (M + 1))
    for noise, holds in ((Noise(M, signs=every), True), (lambda t, _: Noise(M, signs=every)(t, f.gradient(x)), False)):
        record = train(f, method, x, gamma=gamma, noise=noise)
        assert (float(record.value[1].mean()) <= record.descent(smoothness=2.0, gamma_base=gamma, M=M)) is holds


def test_e19_a_masked_gradient_is_not_a_masked_update() -> None:
    """After one whole step Adam moves a coordinate whose gradient is masked by 67 % of a step; here it stands still."""
    moves, inside = [], torch.tensor([True, False])
    for is_ours in (False, True):
        x = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([x], lr=0.1)
        method = Method(mask=masked(lambda c: torch.ones(2, dtype=torch.bool) if c.t == 0 else inside))
        sgd = PartialSGD(nn.ParameterDict({"x": x}), optimizer, method) if is_ours else None

        for t in range(2):
            before = x.detach().clone()
            if sgd is not None:
                sgd.step(lambda x=x: backward(x.sum()))
            else:
                x.grad = torch.ones(2) if t == 0 else inside.float()
                optimizer.step()
        moves.append(float((before - x.detach())[1]) / 0.1)
    assert moves == [pytest.approx(0.67, abs=0.005), 0]


def test_e20_what_a_dropped_weight_does_to_its_own_gradient_is_outside_the_mask() -> None:
    """(x − 5)² + (y − 1)² near its minimum: dropping x makes ∂f/∂x large, and p ⊙ G̃ = p ⊙ G all the same."""
    model = nn.ParameterDict({"x": nn.Parameter(torch.tensor([4.9])), "y": nn.Parameter(torch.tensor([1.2]))})
    at_x, at_zero = (
        Vector({"x": torch.tensor([-0.2]), "y": torch.tensor([0.4])}),
        Vector({"x": torch.tensor([-10.0]), "y": torch.tensor([0.4])}),
    )
    found = criteria(masks.from_tensors(model, {"x": False, "y": True}), at_x, at_zero)
    assert found.c_sim == 1 and at_zero.norm() > 20 * at_x.norm()
    alone = criteria(masks.nothing(model), at_x, at_zero)  # the one dimension of the paper's example
    assert alone.perturbed == 0 and math.isnan(alone.c_sim)


def test_e21_a_shared_batch_shows_opposed_gradients_as_aligned() -> None:
    """Least squares near its minimum, half of the weights dropped: the cosine is −0.20, and a batch of 16 shows +0.83.

    Means over 1000 batches, whose standard error is below 0.012; of the inner products below 0.015 with 256 examples.
    """
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, **FLOAT)

    n, d = 4000, 20
    inputs = normal(n, d) @ (torch.eye(d, **FLOAT) + normal(d, d) / d**0.5)
    best = 0.3 * normal(d)
    targets = inputs @ best + 3 * normal(n)
    x, p = best + 0.05 * normal(d), torch.arange(d) % 2 == 0

    def gradient(at: Tensor, batch: Tensor) -> Tensor:
        a = inputs[batch]
        return p * (a.mT @ (a @ at - targets[batch])[..., None]).squeeze(-1) / batch.shape[-1]

    def compare(u: Tensor, v: Tensor) -> tuple[float, float]:
        inner = (u * v).sum(-1)
        return float((inner / u.norm(dim=-1) / v.norm(dim=-1)).mean()), float(inner.mean())

    whole = torch.arange(n)
    cosine, inner = compare(gradient(x, whole), gradient(p * x, whole))
    assert cosine == pytest.approx(-0.20, abs=0.01)
    for size, expected in ((16, 0.83), (64, 0.68), (256, 0.36)):
        one, other = torch.randint(n, (2, 1000, size), generator=g)
        shared, too_large = compare(gradient(x, one), gradient(p * x, one))
        apart, unbiased = compare(gradient(x, one), gradient(p * x, other))
        assert shared == pytest.approx(expected, abs=0.05) and too_large > 3 * abs(inner)
        assert abs(apart) < abs(cosine), "independent batches err to the other side: their noise is in the norms"
    assert unbiased == pytest.approx(inner, abs=0.06), "but not in the inner product"


def test_e22_c_norm_grows_without_bound_when_the_core_comes_to_rest() -> None:
    """Steps of the core alone: its own gradient goes to zero, that of the whole network stays."""
    f = quadratic(0.4, 1.0, 1.6, 2.0, centre=torch.tensor([1.0, -2.0, 0.5, 1.5], **FLOAT))
    core = Method(mask=masked(lambda c: torch.tensor([True, True, False, False])))
    record = train(f, core, torch.zeros(1, 4, **FLOAT), gamma=0.5, T=60)
    c_norm = [float(whole / part) for whole, part in zip(record.whole, record.masked, strict=True)]
    assert c_norm[0] < 2 and c_norm[20] > 1e2 and c_norm[59] > 1e6
    assert float(record.whole[59]) > 0.1
