"""Settings and presets of the images recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, final

from partialsgd.lab.training.settings import LevelOptions, Settings, require_at_least, require_in, require_positive

Preset: TypeAlias = Literal["digits", "narrow", "cifar10"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The images, and how they are augmented."""

    preset: Preset = "digits"
    """The defaults of the other settings: "digits" is a tiny network for scikit-learn's digits.
    "narrow" is a narrow ResNet-18 for a laptop, on 10,000 images of CIFAR-10, and needs --data.
    "cifar10" is the paper's ResNet-18, and needs --data."""
    data: str | None = None
    """The folder with the binary version of CIFAR-10 (data_batch_1.bin, …, test_batch.bin), or its parent.
    One training batch is enough. By default scikit-learn's 8 × 8 digits are used."""
    limit: int | None = None
    """Use only this many training images, chosen by the seed; the validation images are taken from them."""
    valid_share: float = 0.2
    """The share of the training images that is held out for validation, chosen by the seed.
    The paper holds out 5,000 of CIFAR-10's 50,000 images, which is 0.1."""
    crop: int = 1
    """Pad each image with this many black pixels, and crop it at a random position."""
    flip: bool = False
    """Mirror half of the images, at random."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The residual network."""

    network: Literal["tiny", "resnet18"] = "tiny"
    """Residual blocks: two stages of two (tiny), or four stages of two (ResNet-18)."""
    width: int = 16
    """Channels of the first stage; each further stage has twice as many. ResNet-18 has 64."""
    norms: Literal["separate", "shared", "none"] = "separate"
    """BatchNorm: each level has its own ("separate", the paper's choice), all levels share one, or there is none.
    The paper measures dropout without BatchNorm, which needs a smaller learning rate."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """SGD with momentum, and a cosine schedule."""

    batch: int = 64
    """Images in a batch at most; all batches of an epoch have this size or one image less."""
    lr: float = 0.05
    """The peak learning rate; it falls to 0 along half a cosine."""
    warm_up: int = 0
    """Steps in which the learning rate first rises linearly."""
    momentum: float = 0.9
    """SGD's momentum, without Nesterov."""
    weight_decay: float = 5e-4
    """Weight decay of all parameters, including BatchNorm's and biases."""


@final
@dataclass(frozen=True, kw_only=True)
class Images(DataOptions, ModelOptions, LevelOptions, OptimizerOptions, Settings):
    """Train a residual network, and the smaller ones inside it, to classify images.

    For CIFAR-10 the paper gives ResNet-18, half the width, SGD with momentum 0.9 and weight decay 5e-4. It does not
    give learning rate, schedule, epochs, batch size and augmentation; the preset `cifar10` has what is usual: 0.1 with
    a cosine schedule, 200 epochs, 128 images in a batch, random crops and flips.
    """

    recipe: ClassVar[str] = "images"
    requires: ClassVar[tuple[str, ...]] = ("sklearn",)
    paths: ClassVar[tuple[str, ...]] = ("data",)

    nest: Literal["low-rank", "width", "depth", "none"] = "width"
    epochs: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("width", self.width, 1)
        require_at_least("batch", self.batch, 2)
        for name in ("crop", "warm_up"):
            require_at_least(name, getattr(self, name), 0)
        if self.limit is not None:
            require_at_least("limit", self.limit, 2)
        if not 0 < self.valid_share < 1:
            raise ValueError(f"valid_share must be in (0, 1), got {self.valid_share}")
        require_positive("lr", self.lr)
        require_in("momentum", self.momentum, 0, 1)
        require_in("weight_decay", self.weight_decay, 0, float("inf"))

    def ordinary_sizes(self) -> list[dict[str, Any]]:
        return [{"width": width} for width in range(1, self.width)]


_CIFAR: dict[str, Any] = {"network": "resnet18", "valid_share": 0.1, "batch": 128, "lr": 0.1, "crop": 4, "flip": True}

PRESETS: dict[str, Images] = {
    "digits": Images(),
    "narrow": Images(preset="narrow", **_CIFAR, width=16, limit=10_000, epochs=30),
    "cifar10": Images(preset="cifar10", **_CIFAR, width=64, epochs=200),
}
