"""`save_pretrained`, `from_pretrained` and the model card; what is uploaded goes to a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

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


@contextmanager
def local_hub(folder: Path) -> Iterator[str]:
    """Serve what an upload needs of the Hub's interface on this machine; the files go into the folder."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.path == "/api/repos/create":
                answer: dict[str, Any] = {"url": f"{address}/me/nested"}
            elif self.path == "/api/models/me/nested/preupload/main":
                files = [{"path": each["path"], "uploadMode": "regular"} for each in json.loads(body)["files"]]
                answer = {"files": [{**each, "shouldIgnore": False, "oid": None} for each in files]}
            elif self.path == "/api/validate-yaml":  # the head of the model card
                answer = {"errors": [], "warnings": []}
            else:
                assert self.path == "/api/models/me/nested/commit/main"
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        (folder / line["value"]["path"]).write_bytes(b64decode(line["value"]["content"]))
                answer = {"commitUrl": f"{address}/me/nested/commit/1", "commitOid": "1", "success": True}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield address
        finally:
            server.shutdown()


def test_what_is_pushed_loads_to_the_bit(tmp_path: Path) -> None:
    """Upload from a process of its own, because huggingface_hub reads its address when it is imported."""
    code = (
        "import partialsgd as ps; from tests.export.test_hub import network; "
        "nested = ps.nest(network(), ps.Width(0.25)); "
        "print(nested.push_to_hub('me/nested', metrics={'core': {'loss': 0.5}}, token='hf_none'))"
    )
    with local_hub(tmp_path) as address:
        pushed = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.strip().endswith("/me/nested/commit/1")
    assert "| core |" in (tmp_path / "README.md").read_text()
    assert not differing(ps.nest(network(), ps.Width(0.25)), ps.Nested.from_pretrained(tmp_path, network()))
