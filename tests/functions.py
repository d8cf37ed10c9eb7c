"""f with known L and f*, noise with known M and σ², and Algorithm 1 in many independent runs at once.

The parameter x has a row for each run. f is summed over rows, so that a row's gradient is its run's, and masks and
perturbations are given row by row. γ_t = α_t γ_base differs from run to run, and a learning rate is one number: the
rows of the gradient are multiplied by α_t instead, which for SGD is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from partialsgd import Context, Mask, Method, PartialSGD, Perturbation, Vector, masks, perturbations, theory
from partialsgd._util.randomness import generator, key


def backward(loss: Tensor) -> Tensor:
    """Run the backward pass, for a closure in one line."""
    loss.backward()
    return loss


@dataclass(frozen=True)
class Function:
    """f and ∇f of each row. `smoothness` is the smallest L, and f* = 0."""

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    smoothness: float


def quadratic(*eigenvalues: float, centre: Tensor) -> Function:
    """½ (x − c)ᵀ H (x − c), with axes that are not those of the masks; L is the largest eigenvalue."""
    h, axes = torch.tensor(eigenvalues, dtype=torch.float64), rotation(len(eigenvalues))
    return Function(
        lambda x: 0.5 * (h * ((x - centre) @ axes) ** 2).sum(-1),
        lambda x: (h * ((x - centre) @ axes)) @ axes.T,
        max(eigenvalues),
    )


def robust(*, centre: Tensor) -> Function:
    """Σ z²/(1 + z²) with z = x − c, rotated: not convex, with second derivatives from −1/2 to 2, and so L = 2."""
    axes = rotation(len(centre))

    def value(x: Tensor) -> Tensor:
        squares = ((x - centre) @ axes) ** 2
        return (squares / (1 + squares)).sum(-1)

    def gradient(x: Tensor) -> Tensor:
        z = (x - centre) @ axes
        return (2 * z / (1 + z**2) ** 2) @ axes.T

    return Function(value, gradient, 2.0)


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=generator(key("rotation", d)), dtype=torch.float64)).Q


def drawn(t: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of random signs, anew at each step."""
    bits = torch.randint(2, (2, *like.shape), generator=generator(key("noise", t)))
    first, second = 2 * bits.to(like) - 1
    return first, second


def every(t: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Each pair of signs in one of 4^d rows: a mean over the rows is an expectation, exactly."""
    d = like.shape[1]
    pairs = torch.tensor(list(itertools.product((-1, 1), repeat=2 * d))).to(like)
    return pairs[:, :d], pairs[:, d:]


@dataclass(frozen=True)
class Noise:
    """ξᵢ = ±√M ∂ᵢf ± σ/√d: E‖p ⊙ ξ‖² = M ‖p ⊙ ∇f‖² + σ² |p|/d, within Assumption 2 for every mask p."""

    M: float = 0.0
    variance: float = 0.0
    signs: Callable[[int, Tensor], tuple[Tensor, Tensor]] = drawn

    def __call__(self, t: int, gradient: Tensor) -> Tensor:
        first, second = self.signs(t, gradient)
        return self.M**0.5 * first * gradient + (self.variance / gradient.shape[1]) ** 0.5 * second


@dataclass
class Record:
    """A tensor for each step, in which each run has a number."""

    value: list[Tensor] = field(default_factory=list)
    """f(x_t), and one more for the end"""
    whole: list[Tensor] = field(default_factory=list)
    """‖G‖"""
    masked: list[Tensor] = field(default_factory=list)
    """‖p ⊙ G‖"""
    perturbed: list[Tensor] = field(default_factory=list)
    """‖p ⊙ G̃‖"""
    inner: list[Tensor] = field(default_factory=list)
    """⟨p ⊙ G, p ⊙ G̃⟩"""
    alpha: list[Tensor] = field(default_factory=list)
    """The theorem's, whether the step was scaled by it or not."""

    def part_1(self) -> Tensor:
        """(1/T) Σ α_t² ‖p ⊙ G̃‖² of each run."""
        return torch.stack([(a * g) ** 2 for a, g in zip(self.alpha, self.perturbed, strict=True)]).mean(0)

    def part_2(self, every: int = 1) -> Tensor:
        """(1/T) Σ ‖G‖² of each run; `every=2` takes the even steps."""
        return torch.stack([g**2 for g in self.whole[::every]]).mean(0)

    def descent(self, **problem: float) -> float:
        """Lemma 3's bound of E f(x_1) for the first step of the first run."""
        first = {name: float(getattr(self, name)[0][0]) for name in ("value", "perturbed", "alpha")}
        return theory.descent(**first, **problem)

    def q(self) -> float:
        """The largest ‖G‖/(α_t ‖p ⊙ G̃‖) of all steps and runs."""
        scaled = [a * g for a, g in zip(self.alpha, self.perturbed, strict=True)]
        return max(float((g / s).max()) for g, s in zip(self.whole, scaled, strict=True))


def train(
    f: Function,
    method: Method,
    x_0: Tensor,
    *,
    gamma: float,
    T: int = 1,
    noise: Callable[[int, Tensor], Tensor] = Noise(),  # noqa: B008  # frozen
    by_alpha: bool = True,
    start: int = 0,
) -> Record:
    """T steps of Algorithm 1 from x_0 with γ_t = α_t γ, or γ_t = γ if not `by_alpha`; noise by t and ∇f(x̃_t)."""
    model = nn.ParameterDict({"x": nn.Parameter(x_0.clone())})
    x, record, at = model["x"], Record(), x_0

    def closure() -> Tensor:
        nonlocal at
        at = x.detach().clone()  # x̃_t
        loss = f.value(x).sum() + (noise(sgd.t, f.gradient(at)) * x).sum()
        loss.backward()
        return loss

    def by_rows(context: Context, gradient: Vector) -> Vector:
        _note(record, f, x.detach(), at, torch.as_tensor(context.mask["x"]))
        return Vector({"x": record.alpha[-1][:, None] * gradient["x"]}) if by_alpha else gradient

    sgd = PartialSGD(model, torch.optim.SGD([x], lr=gamma), replace(method, correct=by_rows))
    sgd.t = start
    for _ in range(T):
        sgd.step(closure)
    record.value.append(f.value(x.detach()))
    return record


def _note(record: Record, f: Function, x: Tensor, at: Tensor, mask: Tensor) -> None:
    whole, perturbed = f.gradient(x), mask * f.gradient(at)
    inner = (whole * perturbed).sum(-1)
    record.value.append(f.value(x))
    record.whole.append(whole.norm(dim=-1))
    record.masked.append((mask * whole).norm(dim=-1))
    record.perturbed.append(perturbed.norm(dim=-1))
    record.inner.append(inner)
    record.alpha.append((inner / perturbed.square().sum(-1)).nan_to_num(0.0).clamp(0, 1))


def masked(inside: Callable[[Context], Tensor]) -> Callable[[Context], Mask]:
    """p by rows, or one for all rows."""

    def rule(context: Context) -> Mask:
        return masks.from_tensors(context.parameters, {"x": inside(context).expand_as(context.parameters["x"])})

    return rule


def moved(delta: Callable[[Context], Tensor]) -> Callable[[Context], Perturbation]:
    """δx by rows, or one for all rows."""
    return lambda context: perturbations.add({"x": delta(context).expand_as(context.parameters["x"])})


def dropped(context: Context) -> Perturbation:
    """δx = −(1 − p) ⊙ x."""
    return perturbations.drop_outside(context.mask)


def gaussian(context: Context, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(context.key("x")), dtype=torch.float64)
