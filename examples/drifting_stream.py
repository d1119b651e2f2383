"""Your own CNN on a stream that drifts: handwritten digits that slowly rotate by 180 degrees.

    python examples/drifting_stream.py

Every batch is predicted before it is learned, so the accuracy is that of a model in use. Ten CNNs
train as one module. `averaging` gives them equal weights, `weighted` weights them by how well they
predicted the past, and `one network` is the first of the ten. It prints

    one network  71.7% right before learning
    averaging    74.1% right before learning
    weighted     74.4% right before learning
    5.0 of 10 particles count

The gain comes from the ensemble; the difference between the last two rows is negligible. Without
`min_ess=5` one particle takes all the weight, and `weighted` has 72.6%.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless_lab import datasets


class CNN(nn.Module):
    """Any module: it needs no changes for particles."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, stride=2)
        self.second = nn.Conv2d(8, 16, 5, stride=2)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.head(x.flatten(1))


def turned(x: Tensor, degrees: float) -> Tensor:
    """Rotate images `[B, 1, H, W]`."""
    angle = torch.deg2rad(torch.tensor(degrees))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(())
    rotation = torch.stack([torch.stack([cos, -sin, zero]), torch.stack([sin, cos, zero])])
    grid = F.affine_grid(rotation.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def stream(batch_size: int = 10) -> list[tuple[Tensor, Tensor]]:
    """4,000 digits in a fixed order, rotated from 0 degrees to 180."""
    (x, y), _ = datasets.load_mnist_5k()
    at = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split(batch_size)
    x = x.unsqueeze(1).float() / 255
    return [(turned(x[i], 180 * k / len(at)), y[i].long()) for k, i in enumerate(at)]


def main() -> dict[str, float]:
    particles = ol.Ensemble(CNN, n=10, seed=0)
    optimizer = torch.optim.SGD(particles.parameters(), lr=0.1)
    filter = ol.WeightedParticleFilter(particles, optimizer, min_ess=5)
    loss = ol.per_particle(F.cross_entropy)
    right = {"one network": 0, "averaging": 0, "weighted": 0}
    seen = 0
    for x, y in stream():
        probabilities = filter.outputs(x).softmax(-1)  # [N, B, C]
        answers = probabilities[0], probabilities.mean(0), filter.predict(x)
        for name, answer in zip(right, answers, strict=True):
            right[name] += int((answer.argmax(1) == y).sum())
        seen += len(y)
        filter.step(lambda x=x, y=y: loss(particles(x), y))
    accuracies = {name: count / seen for name, count in right.items()}
    for name, accuracy in accuracies.items():
        print(f"{name:12s} {100 * accuracy:.1f}% right before learning")
    print(f"{float(filter.ess):.1f} of {particles.n} particles count")
    return accuracies


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for networks this small
    main()
