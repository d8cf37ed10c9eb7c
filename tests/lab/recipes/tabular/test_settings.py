"""What the tabular recipe refuses."""

from __future__ import annotations

from typing import Any

import pytest

from partialsgd.lab.recipes.tabular.settings import Tabular


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 1}, "batch must be a whole number, at least 2; got 1"),
        ({"buckets": 1}, "buckets must be a whole number, at least 2; got 1"),
        ({"hidden": 0}, "hidden must be a whole number, at least 1; got 0"),
        ({"layers": 0}, "layers must be a whole number, at least 1; got 0"),
        ({"embedding": 0}, "embedding must be a whole number, at least 1; got 0"),
        ({"warm_up": -1}, "warm_up must be a whole number, at least 0; got -1"),
        ({"epochs": 0}, "epochs must be a whole number, at least 1; got 0"),
        ({"valid_share": 1.0}, r"valid_share must be in \(0, 1\), got 1.0"),
        ({"lr_wide": 0.0}, "lr_wide must be positive, got 0.0"),
        ({"lr_deep": -1.0}, "lr_deep must be positive, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must not be negative, got nan"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tabular(**change)
