"""Training loops of other libraries, each importable where its library is installed.

`PartialTrainer` and `PartialTrainerMixin` are for the Trainer of Hugging Face, `PartialSGDCallback` is for Lightning.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from partialsgd._util.extras import missing

if TYPE_CHECKING:
    from partialsgd.integrations.hf_trainer import PartialTrainer as PartialTrainer
    from partialsgd.integrations.hf_trainer import PartialTrainerMixin as PartialTrainerMixin
    from partialsgd.integrations.lightning_callback import PartialSGDCallback as PartialSGDCallback

__all__ = ["PartialSGDCallback", "PartialTrainer", "PartialTrainerMixin"]

_HOMES = {
    "PartialSGDCallback": "lightning_callback",
    "PartialTrainer": "hf_trainer",
    "PartialTrainerMixin": "hf_trainer",
}
_NEEDS = {
    "hf_trainer": (("transformers", "accelerate"), "trainer"),
    "lightning_callback": (("lightning",), "lightning"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'partialsgd.integrations' has no attribute {name!r}")
    home = _HOMES[name]
    packages, extra = _NEEDS[home]
    try:
        return getattr(import_module(f"partialsgd.integrations.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise missing(f"{name} needs {error.name}", extra) from error


def __dir__() -> list[str]:
    return sorted(__all__)
