"""The script for a GPU runs here on a CPU, finds a broken law, and says when there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from benchmarks.gpu import built_on, check_laws, main, warnings_by_line
from benchmarks.harness import Track, ready
from partialsgd import Context, Mask, Method, masks, perturbations
from partialsgd.parameters import Parameters
from tests.device.cases import METHODS

SMALL = ["--device", "cpu", "--rounds", "1", "--methods", "plain", "alternating", "--problems", "mlp"]


def test_without_a_gpu_it_says_so_and_the_exit_code_is_2() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command, root = [sys.executable, "-m", "benchmarks.gpu"], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "There is no GPU here" in done.stderr and "--device cpu" in done.stderr


def test_it_runs_on_a_cpu_and_writes_a_new_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.txt"
    assert main([*SMALL, "--benchmarks", "switch", "--to", str(file)]) == 0
    shown, written = capsys.readouterr().out, file.read_text(encoding="utf-8")
    for text in ("2 methods: all hold", "not available on", "level switch alone"):
        assert text in shown and text in written
    with pytest.raises(SystemExit, match="exists already"):
        main([*SMALL, "--to", str(file)])
    assert file.read_text(encoding="utf-8") == written


def _drawn_from_the_global_generator(context: Context) -> Mask:
    drawn = {name: torch.rand(p.shape) < 0.5 for name, p in context.parameters.items()}
    return masks.from_tensors(context.parameters, drawn)


def test_a_broken_law_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "random_mask", Method(mask=_drawn_from_the_global_generator))
    with Progress(disable=True) as progress:
        broken = check_laws(torch.device("cpu"), ["random_mask", "plain"], ["mlp"], progress)
    assert {(found.method, found.problem) for found in broken} == {("random_mask", "mlp")}
    laws = {found.law for found in broken}
    assert {"law_9_nothing_is_left_behind", "law_12_draws_depend_on_seed_and_t_alone"} <= laws


def test_warnings_are_counted_by_the_line_that_caused_them() -> None:
    def wait(*_: object) -> None:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)

    with warnings_by_line("synchronizing CUDA operation") as sites:
        wait()
        perturbations.apply(Parameters(torch.nn.Linear(2, 2)), wait)  # inside the package, that is the line
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert sites.total() == 2
    assert sorted(site.partition(":")[0] for site in sites) == ["perturbations.py", "test_gpu.py"]


def test_networks_are_built_on_the_device_and_the_clock_runs_without_a_default_device() -> None:
    seen = []
    with built_on(torch.device("meta")):
        assert torch.nn.Linear(2, 2).weight.is_meta
        Track(rounds=1, warm_up=0, threads=1).race("", {"a": ready(lambda: seen.append(torch.ones(1).device.type))})
        assert torch.ones(1).is_meta
    assert set(seen) == {"cpu"} and not torch.ones(1).is_meta
