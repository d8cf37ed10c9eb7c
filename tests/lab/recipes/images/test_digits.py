"""The embedded digits."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from partialsgd.lab.recipes.images import digits


def test_all_images_are_there_once_as_they_come() -> None:
    data = digits.read(0.2, 0)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [1150, 288, 359]
    assert data.names == tuple("0123456789") and data.train.images.shape[1:] == (1, 8, 8)
    images, labels = load_digits(return_X_y=True)
    ours = torch.cat([part.images for part in (data.train, data.valid, data.test)]).flatten(1)
    classes = torch.cat([part.labels for part in (data.train, data.valid, data.test)])
    assert ours.dtype is torch.uint8 and int(ours.max()) == 16
    found = sorted((*pixels, label) for pixels, label in zip(ours.tolist(), classes.tolist(), strict=True))
    assert found == sorted((*pixels, label) for pixels, label in zip(images.astype(int).tolist(), labels, strict=True))


def test_the_test_images_are_the_same_for_every_seed_and_validation_is_not() -> None:
    first, other = digits.read(0.2, 0), digits.read(0.2, 1)
    assert torch.equal(first.test.images, other.test.images)
    assert not torch.equal(first.valid.images, other.valid.images)
    assert len(digits.read(0.2, 0, limit=50).train) == 40
