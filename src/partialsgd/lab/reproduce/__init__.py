"""Experiments: the paper's tables and figures, and joint against separate training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from partialsgd.lab.training.errors import WrongCall

if TYPE_CHECKING:
    from partialsgd.lab.reproduce.experiment import Experiment

__all__ = ["EXPERIMENTS", "Request", "Scale", "make_experiment"]

Scale: TypeAlias = Literal["smoke", "laptop", "paper"]

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


@dataclass(frozen=True)
class Request:
    """The options of `partialsgd reproduce` that decide which runs an experiment has."""

    scale: Scale = "laptop"
    """The size of networks and data: minutes, to see that it works; hours on two CPU cores; or the paper's, which needs
    a GPU and its data."""
    data: str | None = None
    """The folder with the corpus or the images; by default what needs no file."""
    source: str | None = None
    """The language to translate from; by default the paper's."""
    target: str | None = None
    """The language to translate into; by default the paper's."""
    seeds: int = 3
    """Trainings of each row, with the seeds 0, 1, and so on."""
    start: Literal["zero", "svd", "matched"] | None = None
    """The start of Table 1's low-rank layers; by default all three are tried at r = 1/32, and the best is used."""
    epochs: int | None = None
    """Epochs of each row, instead of the scale's; runs with another number need another --out."""
    layers: int | None = None
    """Blocks of a Transformer's encoder and of its decoder, for instance the paper's six at laptop scale.
    The learning rates are lower for more blocks."""

    def refuse(self, name: str, *options: str) -> None:
        """Raise for options that the experiment would ignore."""
        for option in options:
            if getattr(self, option) is not None:
                raise WrongCall(f"--{option} {getattr(self, option)} has no effect on {name}; leave it out")

    def default_out(self, name: str) -> Path:
        """The default run folder: one for each experiment, scale, depth and corpus."""
        depth = f"-{self.layers}layers" if self.layers else ""
        data = f"-{os.path.basename(os.path.abspath(self.data))}" if self.data else ""
        return Path("runs") / "reproduce" / f"{name}-{self.scale}{depth}{data}"


def make_experiment(name: str, request: Request) -> Experiment:
    """The experiment of that name, for the options of `partialsgd reproduce`."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    module = "images" if name in ("table3", "figure2", "figure3") else "translation"
    experiment: Experiment = import_module(f"partialsgd.lab.reproduce.{module}").experiment(name, request)
    return experiment
