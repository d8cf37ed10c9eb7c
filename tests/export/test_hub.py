"""`save_pretrained`, `from_pretrained` and the model card; nothing is uploaded or downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import partialsgd as ps


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def differing(a: nn.Module, b: nn.Module) -> list[str]:
    other = b.state_dict()
    return [name for name, tensor in a.state_dict().items() if not torch.equal(tensor, other[name])]


def test_what_is_saved_loads_to_the_bit(tmp_path: Path) -> None:
    nested = ps.nest(network(), ps.Width((1 / 4, 1 / 2)))
    nested.save_pretrained(tmp_path)
    assert not differing(nested, ps.Nested.from_pretrained(tmp_path, network()))
    assert not differing(nested, ps.Nested.from_pretrained(str(tmp_path), network()))
    assert {file.suffix for file in tmp_path.iterdir()} == {".safetensors", ".json", ".md"}  # no pickle


def test_a_model_of_transformers_needs_no_model(tmp_path: Path) -> None:
    from tests.integrations import bert

    nested = bert.family()
    nested.save_pretrained(tmp_path)
    loaded = ps.Nested.from_pretrained(tmp_path)
    assert not differing(nested, loaded) and loaded.levels == nested.levels
    with pytest.raises(ValueError, match=r"from_pretrained would load another network.*nested\.save_pretrained"):
        nested.model.save_pretrained(tmp_path / "other")


def test_the_card_has_a_row_for_each_level_and_one_of_your_own_stays(tmp_path: Path) -> None:
    nested = ps.nest(network(), ps.Width((1 / 4, 1 / 2)))
    nested.save_pretrained(
        tmp_path, metrics={"1/4": {"accuracy": 0.91}, "full": {"accuracy": 0.95, "nan|": float("nan")}}
    )
    card = (tmp_path / "README.md").read_text()
    rows = [line for line in card.splitlines() if line.startswith("| ") and "---" not in line]
    assert rows[0] == "| level | parameters | share | accuracy | nan\\| |"
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| 1/4", "| 1/2", "| full"]
    sizes = [
        f"{sum(p.numel() for p in nested.extract(level, example=torch.ones(1, 8)).parameters()):,}"
        for level in nested.levels
    ]
    assert [row.split(" | ")[1] for row in rows[1:]] == sizes
    assert rows[1].endswith("| 0.91 | – |") and rows[2].endswith("| – | – |") and rows[3].endswith("| 0.95 | nan |")

    nested.save_pretrained(tmp_path)  # written by this package: replaced
    assert "accuracy" not in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("my own words")
    nested.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own words"
    (tmp_path / "README.md").unlink()
    (elsewhere := tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "README.md").symlink_to(elsewhere)
    nested.save_pretrained(tmp_path)
    assert elsewhere.read_text() == "kept"


def test_another_model_in_the_directory_is_not_overwritten(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds another model and would be lost"):
        ps.nest(network(), ps.Width(1 / 4)).save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_without_a_network_the_hub_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("someone/a-model", "no/such/folder"):  # the second could be no repository
        with pytest.raises(
            FileNotFoundError, match=f"no directory '{name}', .* give the directory that save_pretrained"
        ):
            ps.Nested.from_pretrained(name)
    with pytest.raises(OfflineModeIsEnabled):
        ps.nest(network(), ps.Width(1 / 4)).push_to_hub("someone/a-model", token="none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="give the directory that save_pretrained wrote"):
        ps.Nested.from_pretrained(tmp_path / "file")
