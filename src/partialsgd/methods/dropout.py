"""p ~ Bernoulli(keep), δx = −(1 − p) ⊙ x: dropout with one mask a batch (Srivastava et al. 2014; Section 3.1).

`nn.Dropout` draws a mask for each example and rescales what is left; that is not an instance of Algorithm 1.
Here one mask serves the batch, nothing is rescaled, and what was dropped is not updated (erratum E12).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, get_args

import torch
from torch import Tensor

from partialsgd import masks, perturbations
from partialsgd._util import randomness
from partialsgd.masks import Mask
from partialsgd.method import Context, Method, directly
from partialsgd.methods._shared import neurons
from partialsgd.methods._shared.neurons import Chosen, Units
from partialsgd.methods._shared.settings import as_patterns, require_share
from partialsgd.nested.specs import Hidden, chains_of

Unit = Literal["weights", "neurons"]


def dropout(
    keep: float = 0.9, *, unit: Unit = "weights", where: Sequence[str] | None = None, hidden: Hidden | None = None
) -> Method:
    """Dropout with one mask a batch: random weights or neurons are dropped and not updated.

    `unit="weights"` drops single entries, by default of every parameter with two or more dimensions.
    `unit="neurons"` drops hidden units with all that is attached to them: their rows and biases, the scale and shift
    of the BatchNorm over them, and the columns of the layers that take them. `where` limits it to some layers, and
    `hidden` names the hidden layers as for `Width` where structure does not tell them. `keep` is the probability of
    staying (torch's own dropout takes the probability of leaving); at least one unit of each layer stays.
    """
    require_share("keep", keep)
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}; got {unit!r}")
    if hidden is not None and unit != "neurons":
        raise ValueError(f"hidden names layers whose neurons are dropped, and unit is {unit!r}; write unit='neurons'")
    patterns, chains = None if where is None else as_patterns(where), chains_of(hidden)

    def chosen(context: Context) -> Chosen:
        found = context.parameters.once(
            ("dropout", patterns, chains), lambda: _units(context.parameters.model, patterns, chains)
        )
        return [(units, _draw(context, units, keep)) for units in found]

    def mask(context: Context) -> Mask:
        if keep == 1:
            return masks.everything(context.parameters)
        if unit == "weights":
            drawn = _draw_weights(context, keep, patterns)
        else:
            drawn = neurons.attached(context.parameters, chosen(context))
        return masks.from_tensors(context.parameters, drawn, rest=True)

    def statistics(context: Context) -> AbstractContextManager[None]:
        return neurons.statistics_kept(context.parameters.model, chosen(context))

    return Method(
        mask=mask,
        perturb=lambda context: perturbations.drop_outside(context.mask),
        within=statistics if unit == "neurons" and keep < 1 else directly,
        name=f"dropout(keep={keep}, unit={unit}, where={patterns}, hidden={chains or None})",
    )


def _draw_weights(context: Context, keep: float, where: tuple[str, ...] | None) -> dict[str, Tensor]:
    parameters = context.parameters
    names = [n for n, p in parameters.items() if p.ndim >= 2] if where is None else parameters.match(where)
    return {name: context.bernoulli(name, keep) for name in names}


def _units(model: torch.nn.Module, where: tuple[str, ...] | None, hidden: Hidden) -> tuple[Units, ...]:
    found = neurons.hidden_units(model, hidden, caller="dropout")
    return found if where is None else neurons.limited(found, where)


def _draw(context: Context, units: Units, keep: float) -> Tensor:
    """Which units stay: each with probability `keep`, and if that leaves none, the one that the key points to."""
    key, device = context.key(units.name), context.parameters[units.name].device
    kept = randomness.bernoulli(key, torch.Size([units.count]), keep, device)
    return kept | ((torch.arange(units.count, device=device) == key % units.count) & ~kept.any())
