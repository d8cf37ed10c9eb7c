"""p ~ Bernoulli(keep), δx = −(1 − p) ⊙ x: dropout with one mask a batch (Srivastava et al. 2014; Section 3.1).

`nn.Dropout` draws a mask for each example and rescales what is left; that is not an instance of Algorithm 1.
Here one mask serves the batch, nothing is rescaled, and what was dropped is not updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from partialsgd import masks, perturbations, randomness
from partialsgd.masks import Mask
from partialsgd.methods.settings import as_patterns, require_share
from partialsgd.names import Parameters
from partialsgd.rules import Context, Method

Unit = Literal["weights", "neurons"]
_HAVE_NEURONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def dropout(keep: float = 0.9, *, unit: Unit = "weights", where: Sequence[str] | None = None) -> Method:
    """Dropout with one mask a batch: random weights or neurons are dropped and not updated.

    `unit="weights"` drops single entries, by default of every parameter with two or more dimensions.
    `unit="neurons"` drops output units of linear and convolutional layers together with their biases, by
    default in all such layers but the last, whose units are the network's outputs. `keep` is the
    probability of staying (torch's own dropout takes the probability of leaving).
    """
    require_share("keep", keep)
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}; got {unit!r}")

    def mask(context: Context) -> Mask:
        if keep == 1:
            return masks.everything(context.parameters)
        draw = _draw_weights if unit == "weights" else _draw_neurons
        return masks.from_tensors(context.parameters, draw(context, keep, where), rest=True)

    return Method(
        mask=mask,
        perturb=lambda context: perturbations.drop_outside(context.mask),
        name=f"dropout(keep={keep}, unit={unit}, where={where if where is None else as_patterns(where)})",
    )


def _draw_weights(context: Context, keep: float, where: Sequence[str] | None) -> dict[str, Tensor]:
    parameters = context.parameters
    names = [n for n, p in parameters.items() if p.ndim >= 2] if where is None else parameters.match(where)
    return {name: context.bernoulli(name, keep) for name in names}


def _draw_neurons(context: Context, keep: float, where: Sequence[str] | None) -> dict[str, Tensor]:
    drawn: dict[str, Tensor] = {}
    for weight, bias in _layers(context.parameters, where):
        x = context.parameters[weight]
        units = randomness.bernoulli(context.key(weight), torch.Size([len(x)]), keep, x.device)
        drawn[weight] = units.view(-1, *[1] * (x.ndim - 1)).expand(x.shape).contiguous()
        if bias is not None:
            drawn[bias] = units
    return drawn


def _layers(parameters: Parameters, where: Sequence[str] | None) -> list[tuple[str, str | None]]:
    """(weight, bias) of each layer whose output units can be dropped."""
    weights = [n for n in parameters if _is_weight_of_neurons(parameters, n)]
    if where is None:
        outputs = [module for module in parameters.model.modules() if isinstance(module, _HAVE_NEURONS)][-1:]
        weights = [n for n in weights if parameters.owner(n) not in outputs]
    else:
        covered = parameters.match(where)
        if not_understood := [n for n in covered if parameters[n].ndim >= 2 and n not in weights]:
            owner = type(parameters.owner(not_understood[0])).__name__
            raise ValueError(f"{not_understood[0]!r} belongs to a {owner}, whose neurons are not known; leave it out")
        weights = [n for n in weights if n in covered]
    if not weights:
        raise ValueError("no layer has neurons to drop: name linear or convolutional layers with `where`")
    biases = [n.removesuffix("weight") + "bias" for n in weights]
    return [(w, b if b in parameters else None) for w, b in zip(weights, biases, strict=True)]


def _is_weight_of_neurons(parameters: Parameters, name: str) -> bool:
    tied = len(parameters.aliases(name)) > 1
    return isinstance(parameters.owner(name), _HAVE_NEURONS) and parameters[name].ndim >= 2 and not tied
