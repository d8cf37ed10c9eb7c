"""What does alternating training do to the core? The paper's criteria on scikit-learn's digits, and its Figure 4.

python examples/does_it_converge.py          # writes two logs and figure_4.png into the folder criteria/
"""

from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import partialsgd as ps


def forward_backward(nested: ps.Nested, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(nested(x), y)
    loss.backward()
    return loss


def train(kind: str, path: Path, steps: int) -> None:
    """Standard training of the whole network, measured against its core, or alternating training."""
    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    nested = ps.nest(nn.Sequential(*layers), ps.Width(1 / 2))
    optimizer = torch.optim.SGD(nested.parameters(), lr=0.1, momentum=0.9)
    method = ps.methods.alternating() if kind == "alternating" else ps.methods.plain()
    meter = ps.CriteriaMeter(every=10, probe=None if kind == "alternating" else "core")
    sgd = ps.PartialSGD(nested, optimizer, method, meter=meter)
    order = torch.Generator().manual_seed(0)
    with ps.MetricsLog(path, t=0) as log:
        for _ in range(steps):
            batch = torch.randint(len(images), (64,), generator=order)
            log.write(sgd.step(partial(forward_backward, nested, images[batch], labels[batch])))
    print(f"{kind}, the core: {meter.summary(sgd)['core']}")


def main(folder: Path = Path("criteria"), steps: int = 600) -> Path:
    folder.mkdir(exist_ok=True)
    runs = {kind: folder / f"{kind}.jsonl" for kind in ("standard", "alternating")}
    for kind, path in runs.items():
        train(kind, path, steps)
    figure = folder / "figure_4.png"
    ps.logging.plot_criteria(runs, figure=4, smooth=5, to=figure)
    print(f"the paper's Figure 4, of these two runs: {figure}")
    return figure


if __name__ == "__main__":
    torch.set_num_threads(1)  # networks this small are slower on more
    main()
