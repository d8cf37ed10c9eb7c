"""The settings of the images recipe, and what they start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, final

from partialsgd.lab.training.settings import Settings, ratio_of, require_at_least

Preset: TypeAlias = Literal["digits", "narrow", "cifar10"]


@final
@dataclass(frozen=True, kw_only=True)
class Images(Settings):
    """A residual network and the smaller ones inside it learn to tell pictures apart.

    Of its training on CIFAR-10 the paper says: ResNet-18, half the width, SGD with momentum 0.9 and weight decay 5e-4.
    Learning rate, schedule, epochs, batch and augmentation are not in it; the preset `cifar10` has what is usual for
    this network: 0.1 and half a cosine down to 0, 200 epochs, 128 images a batch, random crops and mirror images.
    """

    recipe: ClassVar[str] = "images"

    preset: Preset = "digits"
    """Where the other settings start: a tiny network for scikit-learn's digits, which need no file; a narrow ResNet-18
    for a laptop and 10,000 images of CIFAR-10; or the paper's ResNet-18. The last two need --data."""
    data: str | None = None
    """The folder with the binary version of CIFAR-10 (data_batch_1.bin, …, test_batch.bin), or the one around it; one
    training batch is enough. By default scikit-learn's digits, 8 × 8."""
    limit: int | None = None
    """Use only so many of the training images, drawn by the seed; validation is taken from these."""
    valid_share: float = 0.2
    """The share of the training images that is kept for validation, drawn by the seed. With CIFAR-10 the paper's 0.1,
    which is 5,000 of 50,000."""

    network: Literal["tiny", "resnet18"] = "tiny"
    """Residual blocks: two stages of two (tiny), or four of two (ResNet-18)."""
    width: int = 16
    """Channels of the first stage; each further stage has twice as many. ResNet-18 has 64."""
    nest: Literal["width", "low-rank", "depth", "none"] = "width"
    """What a smaller level has less of: channels, ranks of the convolutions, or blocks (half of each stage's two stay).
    "none" is one network by itself."""
    ratio: tuple[str, ...] = ("1/2",)
    """The share that a smaller level has; several give as many levels."""
    alone: str | None = None
    """Take this level out of the family and train it by itself, from the start that it has there."""
    norms: Literal["separate", "shared", "none"] = "separate"
    """Whether each level has its own BatchNorm (the paper's choice), all share one, or there is none (the paper's
    choice where it measures dropout): then the weights are drawn as He et al. do, and want a smaller learning rate."""
    init: Literal["zero", "svd", "matched"] = "zero"
    """How low rank starts: "zero" as the smallest level, the others as an ordinary network."""

    epochs: int = 25
    """Passes over the training images."""
    batch: int = 64
    """Images in a batch, at most: the batches of an epoch are of one size, or one image less. So the last one is as
    good as the others, and BatchNorm never sees a single image."""
    lr: float = 0.05
    """The largest learning rate of SGD; it falls to 0 along half a cosine."""
    warm_up: int = 0
    """Steps in which the learning rate grows linearly before that."""
    momentum: float = 0.9
    """Of SGD, not Nesterov's."""
    weight_decay: float = 5e-4
    """Of all parameters, BatchNorm's and the biases among them, as is usual for this network."""
    crop: int = 1
    """Pixels of black around an image, out of which a random place of the image's size is cut."""
    flip: bool = False
    """Show every second image, at random, as in a mirror."""

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
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not self.ratio and self.nest != "none":
            raise ValueError('ratio is empty; give the share that the smaller level has, or nest="none"')
        for ratio in self.ratio:
            ratio_of(ratio)


_CIFAR: dict[str, Any] = {
    "valid_share": 0.1,
    "network": "resnet18",
    "batch": 128,
    "lr": 0.1,
    "crop": 4,
    "flip": True,
}

PRESETS: dict[str, Images] = {
    "digits": Images(),
    "narrow": Images(preset="narrow", **_CIFAR, width=16, limit=10_000, epochs=30),
    "cifar10": Images(preset="cifar10", **_CIFAR, width=64, epochs=200),
}


def of_preset(name: str, **changes: Any) -> Images:
    """The settings of a preset, with some of them changed."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)
