"""Every method is trained alike, what is stored is shown, and what is stored is not trained again."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from partialsgd import methods
from partialsgd.nested.inspect import flops
from studies.methods import __main__ as command
from studies.methods import page, train
from studies.methods.settings import SETTINGS
from studies.methods.tasks import DIGITS, TASKS, Data, Task, cifar10, digits
from studies.methods.train import Row, is_stored, stored

STEPS = 28  # the seventh ones are counted: of an alternation as many full steps as core steps


@pytest.fixture
def task() -> Task:
    return replace(DIGITS, steps=STEPS, rates=(0.05,))


@pytest.fixture(scope="module")
def data() -> Data:
    return digits()


def row(method: str, seed: int = 0, **known: object) -> Row:
    numbers = ({"0.1": 0.9}, 0.1, 0.9, None, 2.0, 100.0)
    return replace(Row("digits", method, seed, "t", method, *numbers, "2030-01-02", "2.0", "3.11"), **known)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_setting_is_of_the_method_that_it_is_named_after(task: Task) -> None:
    assert set(SETTINGS) <= set(methods.NAMES)
    for name in SETTINGS:
        _, method = train.prepared(task, name, seed=0)
        assert method.name.partition("(")[0] == name


@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_is_measured_at_the_networks_that_it_trains(name: str, task: Task, data: Data) -> None:
    trial = train.attempt(task, name, 0, 0.05, data)
    assert trial is not None
    assert (trial.whole is not None, trial.small is not None) == (SETTINGS[name].has_whole, bool(SETTINGS[name].small))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_learns(name: str, task: Task, data: Data) -> None:
    trial = train.attempt(replace(task, steps=20 * STEPS), name, 0, 0.1, data)
    assert trial is not None
    assert min(reached for reached in (trial.whole, trial.small) if reached is not None) > 0.7  # of ten digits


def test_plain_training_is_the_raw_loop(task: Task, data: Data) -> None:
    task = replace(task, steps=100)
    trial = train.attempt(task, "plain", 3, 0.05, data)
    torch.manual_seed(3)
    model = task.network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    order = torch.Generator().manual_seed(3)
    batches = [b for _ in range(9) for b in torch.randperm(1149, generator=order)[: 64 * 17].split(64)]
    for t in range(100):
        optimizer.param_groups[0]["lr"] = 0.05 * (100 - t) / 100
        cross_entropy(model(data.train.x[batches[t]]), data.train.y[batches[t]]).backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out, test = ((model(p.x).argmax(1) == p.y).float().mean().item() for p in (data.held_out, data.test))
    assert trial is not None
    assert (trial.held_out, trial.whole) == (pytest.approx(held_out), pytest.approx(test))


def test_flops_are_those_of_the_passes_that_are_run(task: Task, data: Data) -> None:
    def of(name: str) -> float:
        trial = train.attempt(task, name, 0, 0.05, data)
        assert trial is not None
        return trial.flops

    plain = of("plain")
    assert plain == flops.count(task.network(), torch.zeros(64, 64)).training
    assert of("sam") == of("extragradient") == 2 * plain
    assert of("random_mask") == of("dynamic_pruning") == plain
    core = of("only")
    assert of("alternating") == (plain + core) / 2 and of("slimmable") == plain + core
    assert core < plain / 2 and of("meprop") < plain and of("freezing") < plain


def test_the_learning_rate_is_chosen_by_held_out_data(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = {0.1: (0.5, 0.99), 0.2: (0.7, 0.6), 0.4: None}

    def attempt(task: Task, name: str, seed: int, rate: float, data: Data) -> train.Trial | None:
        found = tried[rate]
        return None if found is None else train.Trial(rate, found[0], found[1], None, 1.0, 1.0)

    monkeypatch.setattr(train, "attempt", attempt)
    found = train.train(replace(task, rates=tuple(tried)), "plain", 0)
    assert (found.rate, found.whole, found.reached) == (0.2, 0.6, {"0.1": 0.5, "0.2": 0.7})
    with pytest.raises(FloatingPointError, match="plain diverges on digits"):
        train.train(replace(task, rates=(0.4,)), "plain", 0)


def test_cifar_is_read_as_published(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    records = torch.randint(256, (20, 3073), generator=draw, dtype=torch.uint8)
    records[:, 0] %= 10
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(records.numpy().tobytes())
    found = cifar10(tmp_path)
    assert found.train.x.shape == (16, 3, 32, 32) and found.held_out.y.tolist() == records[16:, 0].tolist()
    red = records[:, 1:1025].float()
    assert torch.allclose(found.test.x[5, 0, 2, 7], (red[5, 2 * 32 + 7] - red.mean()) / red.std(), atol=1e-5)
    with pytest.raises(FileNotFoundError, match="--data is the folder"):
        cifar10(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="give --data"):
        cifar10(None)


def test_what_is_stored_with_these_settings_is_not_trained_again(tmp_path: Path, task: Task) -> None:
    file = tmp_path / "methods.jsonl"
    _, method = train.prepared(task, "sam", 1)
    done = row("sam", 1, settings=method.name, task_settings=task.settings)
    done.save(file)
    assert stored(file) == [done]
    assert is_stored([done], task, "sam", 1) and not is_stored([done], task, "sam", 2)
    assert not is_stored([done], replace(task, steps=STEPS + 1), "sam", 1) and not is_stored([], task, "sam", 1)
    assert not is_stored([replace(done, settings="sam(rho=0.1)")], task, "sam", 1)


def test_rows_are_trained_and_stored_by_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "methods.jsonl"
    monkeypatch.setattr("studies.runs.LOGS", tmp_path / "logs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    call = ["--rows", "digits/plain/0", "digits/plain/1", "--results", str(file)]
    command.main(call)
    first, second = stored(file)
    assert (first.seed, second.seed) == (0, 1) and is_stored([first], DIGITS, "plain", 0)
    assert replace(first, seconds=0.0) == replace(train.train(DIGITS, "plain", 0), seconds=0.0)
    before = file.read_bytes()
    command.main(call)
    assert file.read_bytes() == before, "nothing is trained again"


def test_no_results_and_a_wrong_call_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert page.sections(tmp_path / "nothing.jsonl") == "No training is stored yet."
    for arguments, message in (
        (["--rows", "nothing"], "no row has nothing in its name; rows are like digits/sam/0"),
        (["--rows", "cifar10/zzz", "--data", str(tmp_path)], "no row has cifar10/zzz"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command.main(arguments)
        assert stopped.value.code == 2 and message in capsys.readouterr().err
