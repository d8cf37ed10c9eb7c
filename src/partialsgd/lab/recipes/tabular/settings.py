"""The settings of the tabular recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from partialsgd.lab.training.settings import Settings, require_at_least


@final
@dataclass(frozen=True, kw_only=True)
class Tabular(Settings):
    """A wide and a deep network learn to tell two kinds of rows apart: the core is the deep one, full is their sum.

    Each part has its own optimizer: Adagrad for the wide one, AdamW for the deep one. (The published model has FTRL
    with L1 for the wide part, which torch does not have, and Adagrad for the deep one.)
    """

    recipe: ClassVar[str] = "tabular"

    data: str | None = None
    """The folder with the census data Adult: adult_train.csv and adult_test.csv with a header, or the originals
    adult.data and adult.test; plain or .gz. By default scikit-learn's breast-cancer data."""
    valid_share: float = 0.1
    """The share of the training rows that is kept for validation, drawn by the seed."""
    buckets: int = 8
    """Where a number is crossed with something, it is one of so many ranges, each of about as many rows."""

    embedding: int = 8
    """Numbers for each word, in the deep part."""
    hidden: int = 32
    """Units of each hidden layer of the deep part."""
    layers: int = 2
    """Hidden layers of the deep part."""

    epochs: int = 20
    """Passes over the training rows."""
    batch: int = 64
    """Rows in a batch, at most: the batches of an epoch are of one size, or one row less."""
    lr_wide: float = 0.02
    """The largest learning rate of the wide part's Adagrad; both fall to 0 along half a cosine."""
    lr_deep: float = 2e-3
    """The largest learning rate of the deep part's AdamW."""
    warm_up: int = 0
    """Steps in which the learning rates grow linearly before that."""
    weight_decay: float = 0.1
    """Of the deep part: its weights shrink by this times the learning rate at each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding", "hidden", "layers"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("batch", "buckets"):
            require_at_least(name, getattr(self, name), 2)
        require_at_least("warm_up", self.warm_up, 0)
        if not 0 < self.valid_share < 1:
            raise ValueError(f"valid_share must be in (0, 1), got {self.valid_share}")
        for name in ("lr_wide", "lr_deep"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
