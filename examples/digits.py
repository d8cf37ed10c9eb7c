"""Three ways to train one network on scikit-learn's handwritten digits, side by side.

    python examples/digits.py

The start, the batches and the optimizer are the same each time; only the method differs: which weights a
step may move, and where its gradient is taken.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import partialsgd as ps

SEED = 0
METHODS = {
    "plain": ("every weight", ps.methods.plain()),
    "dropout": ("a random 90 %; the rest is off for this step", ps.methods.dropout(keep=0.9)),
    "sam": ("every weight, by the gradient at the worst point nearby", ps.methods.sam(rho=0.05)),
}


@dataclass(frozen=True)
class Digits:
    """8 × 8 images as 64 numbers in [0, 1], and which digit each one is."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Result:
    method: str
    backwards: int
    """Backward passes a step: what a step costs."""
    train_loss: float
    test_accuracy: float
    seconds: float
    model: nn.Module


def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images / 16, labels, test_size=0.2, random_state=SEED)
    return Digits(
        torch.tensor(train_x, dtype=torch.float32),
        torch.tensor(train_y),
        torch.tensor(test_x, dtype=torch.float32),
        torch.tensor(test_y),
    )


def network() -> nn.Module:
    """The same numbers at every call."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def forward_backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Run forward and backward: a step calls this once with most methods, and twice on the same batch with sam."""
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def train(name: str, data: Digits, epochs: int, after_epoch: Callable[[], None]) -> Result:
    _, method = METHODS[name]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sgd = ps.PartialSGD(model, optimizer, method, seed=SEED)

    order = torch.Generator().manual_seed(SEED)
    backwards = 0
    started = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train_x), generator=order).split(64):
            step = sgd.step(partial(forward_backward, model, data.train_x[batch], data.train_y[batch]))
            backwards += step.backwards
        after_epoch()
    seconds = time.perf_counter() - started

    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(data.train_x), data.train_y).item()
        accuracy = (model(data.test_x).argmax(dim=1) == data.test_y).float().mean().item()
    return Result(name, backwards // sgd.t, loss, accuracy, seconds, model)


def train_all(data: Digits, epochs: int, console: Console) -> list[Result]:
    """With a bar for each method on a terminal, and a line for each one elsewhere."""
    results = []
    with Progress(console=console, disable=not console.is_terminal) as progress:
        for name in METHODS:
            task = progress.add_task(name, total=epochs)
            results.append(train(name, data, epochs, partial(progress.advance, task)))
            if not console.is_terminal:
                console.print(f"{name}: {epochs} epochs in {results[-1].seconds:.1f} s")
    return results


def as_table(results: list[Result]) -> Table:
    table = Table(title="scikit-learn's digits: one network, one start, three methods")
    table.caption = "360 test images: one of them is 0.3 %"
    table.add_column("method")
    table.add_column("what a step moves")
    for heading in ("backward\npasses\na step", "train\nloss", "test\naccuracy", "seconds"):
        table.add_column(heading, justify="right")
    for r in results:
        numbers = (str(r.backwards), f"{r.train_loss:.4f}", f"{r.test_accuracy:.1%}", f"{r.seconds:.1f}")
        table.add_row(r.method, METHODS[r.method][0], *numbers)
    return table


def main(console: Console, *, epochs: int = 40) -> list[Result]:
    results = train_all(digits(), epochs, console)
    console.print(as_table(results))
    console.print("Next: README.md, for ten lines around a model of your own.")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # a network this small is slower on more
    main(Console())
