"""p ~ Bernoulli(keep), δx = −(1 − p) ⊙ x: dropout with one mask a batch (Srivastava et al. 2014; Section 3.1).

`nn.Dropout` draws a mask for each example and rescales what is left; that is not an instance of Algorithm 1.
Here one mask serves the batch, nothing is rescaled, and what was dropped is not updated (erratum E12).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from partialsgd import masks, perturbations
from partialsgd._util import randomness
from partialsgd.masks import Mask
from partialsgd.method import Context, Method, directly
from partialsgd.methods._shared import neurons
from partialsgd.methods._shared.neurons import Chosen, Units
from partialsgd.methods._shared.settings import as_patterns, require_one_of, require_share
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
    require_one_of("unit", unit, Unit)
    if hidden is not None and unit != "neurons":
        raise ValueError(f"hidden names layers whose neurons are dropped, and unit is {unit!r}; write unit='neurons'")
    patterns, chains = as_patterns(where), chains_of(hidden)

    def chosen(context: Context) -> Chosen:
        every = context.parameters.once(
            ("dropout", patterns, chains),
            lambda: neurons.hidden_units(context.parameters.model, chains, where=patterns, caller="dropout"),
        )
        return [(units, _draw_units(context, units, keep)) for units in every]

    def mask(context: Context) -> Mask:
        if keep == 1:
            return masks.everything(context.parameters)
        if unit == "weights":
            matrices = [name for name, p in context.parameters.items() if p.ndim >= 2]
            names = matrices if patterns is None else context.parameters.match(patterns)
            return context.random_mask(names, keep)
        drawn = neurons.attached(context.parameters, chosen(context))
        return masks.from_tensors(context.parameters, drawn, rest=True).assume_mixed()  # one unit stays at least

    def statistics(context: Context) -> AbstractContextManager[None]:
        return neurons.statistics_kept(context.parameters.model, chosen(context))

    return Method(
        mask=mask,
        perturb=lambda context: perturbations.drop_outside(context.mask),
        within=statistics if unit == "neurons" and keep < 1 else directly,
        name=f"dropout(keep={keep}, unit={unit}, where={patterns}, hidden={chains or None})",
    )


def _draw_units(context: Context, units: Units, keep: float) -> Tensor:
    """Draw which units stay, each with probability `keep`; if that leaves none, the one that the key points to."""
    key, device = context.key(units.name), context.parameters[units.name].device
    drawn = randomness.bernoulli(key, torch.Size([units.count]), keep, device)
    return drawn | ((torch.arange(units.count, device=device) == key % units.count) & ~drawn.any())
