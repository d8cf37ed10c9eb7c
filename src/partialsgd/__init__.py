"""Partial SGD for PyTorch: train part of a network at each step, and know what moved.

Names are resolved when they are first used, so that `import partialsgd` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd import distributed, export, logging, masks, meters, methods, perturbations, theory
    from partialsgd.engine.gradient_pass import GradientPass
    from partialsgd.engine.partial_sgd import PartialSGD
    from partialsgd.engine.step import Step
    from partialsgd.logging import MetricsLog
    from partialsgd.masks import Mask
    from partialsgd.meters.alerts import Alerts
    from partialsgd.meters.criteria_meter import CriteriaMeter
    from partialsgd.method import Branch, Context, GradientPair, GradientRequest, Guard, Meter, Method
    from partialsgd.nested import Depth, LayerSum, LowRank, Nested, OutputSum, Width, nest, soft_cross_entropy
    from partialsgd.nested.budgets.budget import Budget
    from partialsgd.nested.budgets.fit import fit_budget
    from partialsgd.perturbations import Perturbation
    from partialsgd.vectors import Vector

__all__ = ["distributed", "export", "logging", "masks", "meters", "methods", "perturbations", "theory"]
__all__ += ["Alerts", "CriteriaMeter", "Mask", "MetricsLog", "PartialSGD", "Perturbation", "Step", "Vector"]
__all__ += ["Branch", "Context", "GradientPair", "GradientPass", "GradientRequest", "Guard", "Meter"]
__all__ += ["Method", "__version__"]
__all__ += ["Budget", "fit_budget"]
__all__ += ["Depth", "LayerSum", "LowRank", "Nested", "OutputSum", "Width", "nest", "soft_cross_entropy"]

__version__ = "0.1.0"

_HOMES = {
    "engine.gradient_pass": ("GradientPass",),
    "engine.partial_sgd": ("PartialSGD",),
    "engine.step": ("Step",),
    "logging": ("MetricsLog",),
    "masks": ("Mask",),
    "meters.alerts": ("Alerts",),
    "meters.criteria_meter": ("CriteriaMeter",),
    "method": ("Branch", "Context", "GradientPair", "GradientRequest", "Guard", "Meter", "Method"),
    "nested": ("Depth", "LayerSum", "LowRank", "Nested", "OutputSum", "Width", "nest", "soft_cross_entropy"),
    "nested.budgets.budget": ("Budget",),
    "nested.budgets.fit": ("fit_budget",),
    "perturbations": ("Perturbation",),
    "vectors": ("Vector",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f"partialsgd.{_HOME_OF[name]}"), name)
    if name in __all__:
        return import_module(f"partialsgd.{name}")
    raise AttributeError(f"module 'partialsgd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
