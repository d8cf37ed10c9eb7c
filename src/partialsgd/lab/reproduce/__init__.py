"""Experiments: the paper's tables and figures, and joint against separate training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.lab.reproduce.experiment import Experiment, Request

__all__ = ["EXPERIMENTS", "make_experiment"]

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
"""The experiments by name, in the order of the paper."""


def make_experiment(name: str, request: Request) -> Experiment:
    """The experiment of that name, for the options of `partialsgd reproduce`."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    module = "images" if name in ("table3", "figure2", "figure3") else "translation"
    experiment: Experiment = import_module(f"partialsgd.lab.reproduce.{module}").experiment(name, request)
    return experiment
