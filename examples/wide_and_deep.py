"""Wide and deep learning (Cheng et al. 2016) as a sum of two networks, on scikit-learn's breast cancer data.

    python examples/wide_and_deep.py

The core is the deep network; the full model adds the wide one, a linear function of the features. Alternating
training gives both in one run, and either can be extracted as a plain module.
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import partialsgd as ps

SEED = 0


def data() -> list[Tensor]:
    """Training features, test features, training labels, test labels; features have mean 0 and deviation 1."""
    features, labels = load_breast_cancer(return_X_y=True)
    split = train_test_split(features, labels, test_size=0.2, random_state=SEED, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.tensor(part, dtype=torch.float32) for part in split)
    mean, deviation = train_x.mean(0), train_x.std(0)
    return [(train_x - mean) / deviation, (test_x - mean) / deviation, train_y, test_y]


def network(features: int) -> ps.Nested:
    torch.manual_seed(SEED)
    deep = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    wide = nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))
    return ps.nest(ps.OutputSum(deep, wide))


def main(epochs: int = 30) -> dict[str, float]:
    train_x, test_x, train_y, test_y = data()
    nested = network(train_x.shape[1])
    optimizer = torch.optim.AdamW(nested.parameters(), lr=1e-2)
    sgd = ps.PartialSGD(nested, optimizer, ps.methods.alternating(), seed=SEED)
    order = torch.Generator().manual_seed(SEED)
    for _ in range(epochs):
        for batch in torch.randperm(len(train_x), generator=order).split(32):

            def forward_backward(batch: Tensor = batch) -> Tensor:
                loss = nn.functional.binary_cross_entropy_with_logits(nested(train_x[batch]), train_y[batch])
                loss.backward()
                return loss

            sgd.step(forward_backward)
    with torch.no_grad():
        scores = {level: nested.extract(level).eval()(test_x) for level in nested.levels}
    return {level: float(roc_auc_score(test_y, logits)) for level, logits in scores.items()}


if __name__ == "__main__":
    for level, auc in main().items():
        print(f"{level}: AUC {auc:.3f} on the test data")
