"""p ~ Bernoulli(keep), δx = 0: the gradient of the whole network, applied to a random part of it."""

from __future__ import annotations

from collections.abc import Sequence

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.method import Context, Method
from partialsgd.methods._shared.settings import as_patterns, require_share


def random_mask(keep: float = 0.5, *, where: Sequence[str] = ("*",)) -> Method:
    """Random mask: a random share of the coordinates moves, nothing is perturbed.

    Coordinates that no pattern of `where` covers always move.
    """
    require_share("keep", keep)

    def mask(context: Context) -> Mask:
        if keep == 1:
            return masks.everything(context.parameters)
        return context.random_mask(context.parameters.match(where), keep)

    return Method(mask=mask, name=f"random_mask(keep={keep}, where={as_patterns(where)})")
