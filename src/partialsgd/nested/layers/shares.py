"""The parameters of a nested layer as modules of their own, one for each set of levels that uses them.

`fully_shard` gathers the parameters of a module before its forward. A layer whose parameters lie in shares runs inside
the forwards of those that its level uses, so that at a small level the others are never gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor, nn

from partialsgd.parameters import SHARE


@final
class Share(nn.Module):
    """Some parameters of a nested layer. Their names, in a state dict too, are those that they have in the layer."""

    def __init__(self, levels: frozenset[str]) -> None:
        super().__init__()
        self.levels = levels
        """The levels that use the parameters."""

    def forward(self, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return compute(x), which reads the parameters of this share.

        It is never a view: `fully_shard` hooks the outputs of a unit, and a change of a view in place loses the hook.
        """
        y = compute(x)
        return y if y._base is None else y.clone()

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        return super().state_dict(destination=destination, prefix=prefix.rpartition(SHARE)[0], keep_vars=keep_vars)

    def extra_repr(self) -> str:
        return f"{', '.join(self._parameters)} of {', '.join(sorted(self.levels))}"
