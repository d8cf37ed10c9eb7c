"""One training run, three networks: scikit-learn's digits, with two smaller networks inside a larger one.

python examples/every_size.py
"""

from functools import partial

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import partialsgd as ps


def digits() -> list[Tensor]:
    """Images to train and to test with, as 64 numbers in [0, 1], then the labels of both."""
    images, labels = load_digits(return_X_y=True)
    return [torch.as_tensor(part) for part in train_test_split(images.astype("float32") / 16, labels, random_state=0)]


def forward_backward(nested: ps.Nested, x: Tensor, y: Tensor) -> Tensor:
    """At the level that the step has chosen."""
    loss = nn.functional.cross_entropy(nested(x), y)
    loss.backward()
    return loss


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    return (network(x).argmax(dim=1) == y).float().mean().item()


def main(epochs: int = 60) -> tuple[ps.Nested, nn.Module]:
    """The family, and its smallest network by itself."""
    train_x, test_x, train_y, test_y = digits()
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    nested = ps.nest(nn.Sequential(*layers), ps.LowRank((1 / 16, 1 / 4), init="zero"))
    optimizer = torch.optim.SGD(nested.parameters(), lr=0.05, momentum=0.9)  # after nest: the parameters are new
    sgd = ps.PartialSGD(nested, optimizer, ps.methods.alternating())
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(len(train_x), generator=order).split(64):
            sgd.step(partial(forward_backward, nested, train_x[batch], train_y[batch]))

    print(nested.draw())
    for level in nested.levels:
        with nested.at(level):
            print(f"{level}: {accuracy(nested, test_x, test_y):.1%} of {len(test_x)} test images")
    small = nested.extract(nested.levels[0])  # a plain nn.Module, checked to compute what the level computes
    print(f"{nested.levels[0]} by itself: {accuracy(small, test_x, test_y):.1%}")
    return nested, small


if __name__ == "__main__":
    torch.set_num_threads(1)  # networks this small are slower on more
    main()
