"""The settings of each method, the same for every task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias, final

from torch import nn

import partialsgd as ps
from partialsgd import methods
from partialsgd.method import Method

ZEROS = 0.8


@final
@dataclass(frozen=True)
class Plan:
    """The network and the length of a training, which a method may depend on."""

    model: nn.Module
    layers: tuple[str, ...]
    """The names of the layers, in order."""
    steps: int

    @property
    def nested(self) -> ps.Nested:
        assert isinstance(self.model, ps.Nested)
        return self.model

    @property
    def halves(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        middle = len(self.layers) // 2
        return self.layers[:middle], self.layers[middle:]


Small: TypeAlias = Callable[[Plan, ps.PartialSGD], AbstractContextManager[object]]


@final
@dataclass(frozen=True)
class Setting:
    method: Callable[[Plan], Method]
    width: float | tuple[float, ...] | None = None
    """The widths of the nested model, for methods that train one."""
    small: Small | None = None
    """A context in which the model is the smaller network that the method trains too."""
    of: str = ""
    """The size of that smaller network, in words."""
    has_whole: bool = True
    """False if the method trains only a smaller network."""


def nest(model: nn.Module, setting: Setting) -> nn.Module:
    return model if setting.width is None else ps.nest(model, ps.Width(setting.width))


def _core(plan: Plan, sgd: ps.PartialSGD) -> AbstractContextManager[object]:
    return plan.nested.at(plan.nested.levels[0])


def _pruned(plan: Plan, sgd: ps.PartialSGD) -> AbstractContextManager[object]:
    return sgd.perturbed()


def _sparsest(plan: Plan, sgd: ps.PartialSGD) -> AbstractContextManager[object]:
    return sgd.perturbed(str(ZEROS))


def _ac_dc(plan: Plan) -> Method:
    tenth = plan.steps // 10
    return methods.ac_dc(ZEROS, warmup=tenth, sparse=tenth, dense=tenth, until=7 * tenth)


_SPARSE, _HALF, _QUARTER = f"{ZEROS:.0%} zeros", "half the width", "a quarter of the width"

SETTINGS: dict[str, Setting] = {
    "ac_dc": Setting(_ac_dc, small=_pruned, of=_SPARSE, has_whole=False),
    "alternating": Setting(lambda plan: methods.alternating(), 1 / 2, _core, _HALF),
    "block_coordinate": Setting(lambda plan: methods.block_coordinate(every=10)),
    "compose": Setting(lambda plan: methods.compose(methods.alternating(), methods.sam(0.05)), 1 / 2, _core, _HALF),
    "compressed_gradient": Setting(lambda plan: methods.compressed_gradient(0.1)),
    "dropout": Setting(lambda plan: methods.dropout(0.9)),
    "dynamic_pruning": Setting(
        lambda plan: methods.dynamic_pruning(ZEROS, ramp=plan.steps // 2), small=_pruned, of=_SPARSE
    ),
    "dynamic_sparsity": Setting(lambda plan: methods.dynamic_sparsity((0.5, ZEROS)), small=_sparsest, of=_SPARSE),
    "extragradient": Setting(lambda plan: methods.extragradient(0.01)),
    "freezing": Setting(lambda plan: methods.freezing(steps=plan.steps, start=0.5, stages=plan.halves)),
    "guarded": Setting(lambda plan: methods.guarded(methods.dropout(0.9), by="c_align", bound=2.0)),
    "independent_subnets": Setting(lambda plan: methods.independent_subnets(2, 20)),
    "layerwise": Setting(lambda plan: methods.layerwise(plan.steps // len(plan.layers), always=plan.layers[-1:])),
    "meprop": Setting(lambda plan: methods.meprop(16)),
    "only": Setting(lambda plan: methods.only(), 1 / 2, _core, _HALF, has_whole=False),
    "plain": Setting(lambda plan: methods.plain()),
    "random_mask": Setting(lambda plan: methods.random_mask(0.5)),
    "sam": Setting(lambda plan: methods.sam(0.05)),
    "sandwich": Setting(
        lambda plan: methods.sandwich(between=1, combine="mean"),
        (1 / 4, 1 / 2, 3 / 4),
        _core,
        _QUARTER,
    ),
    "scaled_by_alpha": Setting(lambda plan: methods.scaled_by_alpha(methods.alternating()), 1 / 2, _core, _HALF),
    "slimmable": Setting(lambda plan: methods.slimmable(combine="mean"), 1 / 2, _core, _HALF),
    "top_k": Setting(lambda plan: methods.top_k(0.1)),
}
