"""Two networks from one run, each with int8 weights by torchao, on a CPU: bytes of the file and accuracy.

python -m examples.int8_weights   # needs torchao: pip install -c constraints.txt ".[int8]"
"""

import io

import torch
from examples.every_size import accuracy, digits
from examples.every_size import main as train
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_


def file_size(network: nn.Module) -> int:
    """Bytes of the state dict, as torch.save writes it."""
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    return len(file.getvalue())


def main(epochs: int = 60) -> list[tuple[str, str, int, float]]:
    """For each network, and for each kind of weights: its name, the kind, bytes and accuracy."""
    nested, small = train(epochs)
    _, x, _, y = digits()
    rows = []
    for name, network in ((nested.levels[0], small), ("full", nested.extract("full"))):
        network.eval()
        rows.append((name, "float32", file_size(network), accuracy(network, x, y)))
        quantize_(network, Int8WeightOnlyConfig())  # in place: an extracted level is a plain module of its own
        rows.append((name, "int8", file_size(network), accuracy(network, x, y)))
    for name, kind, size, share in rows:
        print(f"{name:5} {kind:8} {size:>8,} bytes {share:6.1%}")
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
