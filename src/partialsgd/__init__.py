"""Partial SGD for PyTorch: train part of a network at each step, and know what moved.

Names are resolved when they are first used, so that `import partialsgd` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd import export as export
    from partialsgd import logging as logging
    from partialsgd import masks as masks
    from partialsgd import meters as meters
    from partialsgd import methods as methods
    from partialsgd import perturbations as perturbations
    from partialsgd import theory as theory
    from partialsgd.engine.partial_sgd import PartialSGD as PartialSGD
    from partialsgd.engine.step import Step as Step
    from partialsgd.logging import MetricsLog as MetricsLog
    from partialsgd.masks import Mask as Mask
    from partialsgd.meters.alerts import Alerts as Alerts
    from partialsgd.meters.criteria_meter import CriteriaMeter as CriteriaMeter
    from partialsgd.method import Branch as Branch
    from partialsgd.method import Context as Context
    from partialsgd.method import GradientPair as GradientPair
    from partialsgd.method import GradientRequest as GradientRequest
    from partialsgd.method import Guard as Guard
    from partialsgd.method import Meter as Meter
    from partialsgd.method import Method as Method
    from partialsgd.nested import Depth as Depth
    from partialsgd.nested import LayerSum as LayerSum
    from partialsgd.nested import LowRank as LowRank
    from partialsgd.nested import Nested as Nested
    from partialsgd.nested import OutputSum as OutputSum
    from partialsgd.nested import Width as Width
    from partialsgd.nested import nest as nest
    from partialsgd.nested import soft_cross_entropy as soft_cross_entropy
    from partialsgd.perturbations import Perturbation as Perturbation
    from partialsgd.vectors import Vector as Vector

__version__ = "0.1.0"

_HOMES = {
    "engine.partial_sgd": ("PartialSGD",),
    "engine.step": ("Step",),
    "logging": ("MetricsLog",),
    "masks": ("Mask",),
    "meters.alerts": ("Alerts",),
    "meters.criteria_meter": ("CriteriaMeter",),
    "method": ("Branch", "Context", "GradientPair", "GradientRequest", "Guard", "Meter", "Method"),
    "nested": ("Depth", "LayerSum", "LowRank", "Nested", "OutputSum", "Width", "nest", "soft_cross_entropy"),
    "perturbations": ("Perturbation",),
    "vectors": ("Vector",),
}
_MODULES = ("export", "logging", "masks", "meters", "methods", "perturbations", "theory")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_MODULES, *_HOME_OF]


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f"partialsgd.{_HOME_OF[name]}"), name)
    if name in _MODULES:
        return import_module(f"partialsgd.{name}")
    raise AttributeError(f"module 'partialsgd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
