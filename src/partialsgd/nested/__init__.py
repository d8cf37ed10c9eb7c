"""A network with networks inside it."""

from __future__ import annotations

from partialsgd.nested.distillation import soft_cross_entropy as soft_cross_entropy
from partialsgd.nested.layers.sums import OutputSum as OutputSum
from partialsgd.nested.nested import Nested as Nested
from partialsgd.nested.nested import nest as nest
from partialsgd.nested.specs import Depth as Depth
from partialsgd.nested.specs import LayerSum as LayerSum
from partialsgd.nested.specs import LowRank as LowRank
from partialsgd.nested.specs import Width as Width
