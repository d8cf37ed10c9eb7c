"""The presets, and what is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from partialsgd.lab.recipes.images.settings import PRESETS, Images, Preset


def test_presets_know_their_names_and_the_default_is_the_first() -> None:
    assert tuple(PRESETS) == get_args(Preset)
    assert all(settings.preset == name for name, settings in PRESETS.items())
    assert PRESETS["digits"] == Images() and Images().data is None


def test_the_preset_cifar10_is_the_papers_with_what_is_usual_where_it_is_silent() -> None:
    s = PRESETS["cifar10"]
    assert (s.network, s.width, s.nest, s.ratio, s.norms) == ("resnet18", 64, "width", ("1/2",), "separate")
    assert (s.momentum, s.weight_decay, s.valid_share) == (0.9, 5e-4, 0.1)
    assert (s.lr, s.warm_up, s.epochs, s.batch, s.crop, s.flip, s.limit) == (0.1, 0, 200, 128, 4, True, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 1}, "batch must be a whole number of at least 2, got 1"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"crop": -1}, "crop must be a whole number of at least 0, got -1"),
        ({"warm_up": -1}, "warm_up must be a whole number of at least 0, got -1"),
        ({"limit": 1}, "limit must be a whole number of at least 2, got 1"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"valid_share": 0.0}, r"valid_share must be in \(0, 1\), got 0.0"),
        ({"valid_share": 1.0}, r"valid_share must be in \(0, 1\), got 1.0"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -1.0}, r"weight_decay must be in \[0, inf\), got -1.0"),
        ({"ratio": ()}, "ratio is empty"),
        ({"ratio": ("1/0",)}, "ratio must be written like 1/32 or 0.03125, got '1/0'"),
        ({"ratio": ("2",)}, r"ratio must be in \(0, 1\], got '2'"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Images(**change)


def test_one_network_by_itself_needs_no_ratio() -> None:
    assert Images(nest="none", ratio=()).ratio == ()
