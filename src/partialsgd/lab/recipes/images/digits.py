"""Handwritten digits that come with scikit-learn: 1,797 images of 8 × 8."""

from __future__ import annotations

import torch

from partialsgd.lab.recipes.images.data import Data, Part, apart
from partialsgd.lab.training.orders import permutation

TEST_SHARE = 0.2


def read(valid_share: float, seed: int, limit: int | None = None) -> Data:
    """The test images are the same for every seed; validation is drawn by it."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install partialsgd[lab]") from error
    images, labels = load_digits(return_X_y=True)
    known = Part(torch.tensor(images, dtype=torch.uint8).view(-1, 1, 8, 8), torch.tensor(labels, dtype=torch.long))
    order = permutation(len(known), "test")
    tested = round(TEST_SHARE * len(known))
    train, valid = apart(known[order[:-tested]], valid_share, seed, limit)
    return Data(train, valid, known[order[-tested:]], tuple(map(str, range(10))))
