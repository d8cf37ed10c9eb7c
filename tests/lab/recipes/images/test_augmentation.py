"""Crops and mirror images against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partialsgd.lab.recipes.images.augmentation import Draws, augmented, draws, windows
from tests.lab.recipes.images import slow


def pictures(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("seed", "epoch", "padding", "flip"), [(0, 0, 4, True), (5, 3, 1, False), (2, 9, 0, True)])
def test_the_draws_are_those_of_the_definition(seed: int, epoch: int, padding: int, flip: bool) -> None:
    found = draws(seed, epoch, 200, padding, flip=flip)
    for index in range(200):
        expected = slow.draws(seed, epoch, index, padding, flip)
        assert tuple(int(drawn[index]) for drawn in found) == expected


def test_the_draw_of_an_image_depends_on_seed_epoch_and_index_alone() -> None:
    many, few = draws(1, 2, 70_000, 4, flip=True), draws(1, 2, 10, 4, flip=True)
    for a, b in zip(many, few, strict=True):
        assert torch.equal(a[:10], b)
    for index in (65_535, 65_536, 69_999):  # words are made in chunks
        assert tuple(int(drawn[index]) for drawn in many) == slow.draws(1, 2, index, 4, True)
    for other in (draws(2, 2, 1000, 4, flip=True), draws(1, 3, 1000, 4, flip=True)):
        assert all(float((a[:1000] == b).float().mean()) < 0.7 for a, b in zip(many, other, strict=True))


def test_every_place_is_as_likely_and_every_second_image_is_mirrored() -> None:
    drawn = draws(0, 0, 45_000, 4, flip=True)
    places = torch.bincount(9 * drawn.down + drawn.right, minlength=81).float() / 45_000
    assert len(places) == 81 and float((places * 81 - 1).abs().max()) < 0.2  # five deviations are 0.21
    assert abs(float(drawn.mirrored.float().mean()) - 0.5) < 0.012
    assert not draws(0, 0, 100, 4, flip=False).mirrored.any()


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [True, False])
def test_images_are_those_of_the_definition(padding: int, flip: bool) -> None:
    images = pictures(12, 3, 6, 5)
    chosen, drawn = torch.tensor([7, 0, 3, 3, 11]), draws(3, 1, 12, padding, flip=flip)
    found = augmented(windows(images, padding), chosen, drawn.of(chosen))
    expected = [slow.augmented(images[i], padding, *slow.draws(3, 1, i, padding, flip)) for i in chosen.tolist()]
    assert found.dtype is torch.uint8 and found.tolist() == expected


def test_without_padding_and_mirror_it_is_the_image() -> None:
    images, chosen = pictures(4, 1, 8, 8), torch.tensor([2, 1])
    drawn = draws(0, 0, 4, 0, flip=False).of(chosen)
    assert torch.equal(augmented(windows(images, 0), chosen, drawn), images[chosen])


def test_all_cuts_of_the_images_take_no_more_room_than_the_images_with_their_frame() -> None:
    images = pictures(5, 3, 8, 8)
    cuts = windows(images, 2)
    assert cuts.shape == (5, 3, 5, 5, 8, 8) and cuts.untyped_storage().nbytes() == 5 * 3 * 12 * 12
    assert isinstance(draws(0, 0, 5, 2, flip=True).of(slice(1, 3)), Draws)
