"""The paper's tables and figures: which runs each takes, and the printed numbers beside ours."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.lab.reproduce.plans import Asked, Experiment

__all__ = ["EXPERIMENTS", "experiment"]

EXPERIMENTS: dict[str, str] = {
    "table1a": "BLEU on IWSLT14: a Transformer and its low-rank core, r = 1/4, 1/8, 1/32",
    "table1b": "BLEU on WMT17: a Transformer and its low-rank core, r = 1/32",
    "table2a": "BLEU on IWSLT14: a Transformer and its narrow core, r = 1/4, 1/32",
    "table2b": "BLEU on WMT17: a Transformer and its narrow core, r = 1/32, and the low-rank one of r = 1/64",
    "table3": "Accuracy and FLOPs on CIFAR-10: ResNet-18 and half its width, alternating and slimmable",
    "figure2": "Criteria 2 and 3 on CIFAR-10, trained with dropout",
    "figure3": "The cosine on CIFAR-10, trained with and without dropout",
    "figure4": "Criteria 1 to 3 of a Transformer's half width, standard and alternating",
}
"""By name, in the order of the paper."""

_MODULES = {"table1": "translations", "table2": "translations", "table3": "pictures", "figure": "criteria"}


def experiment(name: str, asked: Asked) -> Experiment:
    """The runs and the table of an experiment, as it was asked for."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    module = next(module for start, module in _MODULES.items() if name.startswith(start))
    made: Experiment = import_module(f"partialsgd.lab.reproduce.{module}").experiment(name, asked)
    return made
