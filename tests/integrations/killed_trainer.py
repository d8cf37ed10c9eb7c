"""A script: a family trained by the Trainer in real processes, killed with SIGKILL and resumed, is the same to the bit.

python -m tests.integrations.killed_trainer FOLDER [all]   # prints a line for each comparison
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers.trainer_callback as callbacks
from safetensors.torch import load_file, save_file

import partialsgd as ps
from partialsgd.integrations import PartialTrainer
from tests.integrations import bert

Condition = Callable[[Path], bool]


class Progress(callbacks.TrainerCallback):
    """Leaves the number of the last step in a file, for the process that kills."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step_end(self, args: object, state: callbacks.TrainerState, control: object, **others: object) -> None:
        self.file.write_text(str(state.global_step))


def train(output: Path, *, resume: bool) -> None:
    """What each process does: train, and leave the state of the nested model in a file."""
    torch.set_num_threads(1)
    nested, rank = bert.family(), os.environ.get("RANK", "0")
    options = {"ddp_backend": "gloo"} if "RANK" in os.environ else {}
    trainer = PartialTrainer(
        model=nested,
        args=bert.arguments(output, save_total_limit=2, **options),
        method=ps.methods.compose(ps.methods.alternating(), ps.methods.random_mask(0.8)),
        train_dataset=bert.data(192),
        callbacks=[Progress(output / f"step of {rank}")],
    )
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.sgd is not None and trainer.sgd.t == bert.STEPS
    save_file({name: t.clone() for name, t in nested.state_dict().items()}, output / f"{rank}.safetensors")


def run(output: Path, ranks: int, *, resume: bool = False, kill_when: Condition | None = None) -> None:
    """Fork the processes, and kill all of them when the condition holds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    output.mkdir(exist_ok=True)
    children = []
    for rank in range(ranks):
        if (child := os.fork()) == 0:
            status = 1
            try:
                if ranks > 1:
                    of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                    os.environ.update({**of_rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
                train(output, resume=resume)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    if kill_when is not None:
        while not kill_when(output):
            time.sleep(0.001)
        for child in children:
            os.kill(child, signal.SIGKILL)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert statuses == [0 if kill_when is None else -signal.SIGKILL] * ranks, statuses


def after_step(number: int) -> Condition:
    def holds(output: Path) -> bool:
        file = output / "step of 0"
        text = file.read_text() if file.exists() else ""
        return bool(text) and int(text) >= number

    return holds


def while_saving(step: int) -> Condition:
    return lambda output: (output / f"checkpoint-{step}").exists()


KILLS = {"after step 6": after_step(6), "while saving step 8": while_saving(8)}
SOME = {1: ["while saving step 8"], 2: ["after step 6"]}


def main(folder: Path, kills: dict[int, list[str]]) -> int:
    failures = 0
    for ranks in (1, 2):
        run(whole := folder / f"{ranks} whole", ranks)
        expected = load_file(whole / "0.safetensors")
        for name in kills[ranks]:
            kill_when = KILLS[name]
            run(parts := folder / f"{ranks} killed {name}", ranks, kill_when=kill_when)
            run(parts, ranks, resume=True)
            for rank in range(ranks):
                found = load_file(parts / f"{rank}.safetensors")
                same = found.keys() == expected.keys() and all(torch.equal(found[n], expected[n]) for n in expected)
                print(f"{ranks} processes, killed {name}, rank {rank}: {'same' if same else 'DIFFERENT'}", flush=True)
                failures += not same
    return failures


if __name__ == "__main__":
    everything = {ranks: list(KILLS) for ranks in (1, 2)}
    sys.exit(main(Path(sys.argv[1]), everything if "all" in sys.argv else SOME) > 0)
