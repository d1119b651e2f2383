"""Low-rank adapters on a frozen network, trained task by task and merged in any order.

    python examples/merged_adapters.py

A CNN trained on 0 to 4 is frozen. Each pair of digits trains a rank-8 adapter and a head. It prints

    one task after another  18.1% right
    product of the tasks    91.9% right
    another order of the tasks gives the same bits: True
    without the task of 8 and 9, of these 0.0% right

Every task starts from the same adapters. Tasks may be learned on different machines, added
(`a + b`) and removed (`a - b`). Relatives: RegMean (Jin et al. 2023), LoRM (Salami 2024).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless_lab import datasets

squared_error = ol.per_particle(lambda out, y: (out - F.one_hot(y, 10)).square().sum(1).mean() / 2)


class Adapted(nn.Module):
    """A frozen Linear layer plus a trained path of rank 8 that starts at zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, 8, bias=False)
        self.up = nn.Linear(8, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def main() -> dict[str, float]:
    torch.manual_seed(0)
    digits = datasets.load_mnist_5k()
    (x, y), (x_test, y_test) = [(x[:, None] / 255, y.long()) for x, y in digits]
    convolutions = nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2)
    body = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(512, 256))
    known = nn.Sequential(body, nn.ReLU(), nn.Linear(256, 5))
    optimizer = torch.optim.Adam(known.parameters(), lr=1e-3)
    old = (y < 5).nonzero()[:, 0]
    for rows in old[torch.randint(len(old), (400, 32))]:
        optimizer.zero_grad()
        F.cross_entropy(known(x[rows]), y[rows]).backward()
        optimizer.step()
    body.requires_grad_(False)
    adapted = nn.Sequential(*body[:5], Adapted(body[5]), nn.ReLU(), nn.Linear(256, 10))
    nn.init.zeros_(adapted[-1].weight)

    def learned(pairs: list[int], product: bool = True) -> ol.filters.Predictor:
        particles = ol.Ensemble.from_modules([adapted])
        pf = ol.PosteriorProduct(particles, lambda p: torch.optim.Adam(p, lr=1e-3))
        filter = pf if product else pf.task_filter  # the latter continues from the last task
        for pair in pairs:
            own = (y // 2 == pair).nonzero()[:, 0]
            noise = torch.Generator().manual_seed(pair)
            shuffled = own.repeat(2)[torch.randperm(2 * len(own), generator=noise)]
            for rows in shuffled.split(32):
                filter.step(lambda rows=rows: squared_error(particles(x[rows]), y[rows]))
            if product:
                pf.end_task((x[own], y[own]))
        return filter

    def right(filter: ol.filters.Predictor, least: int = 0) -> float:
        hits = filter.predict(x_test).argmax(1) == y_test
        return 100 * float(hits[y_test >= least].float().mean())

    whole = learned([0, 1, 2, 3, 4])
    chain = learned([0, 1, 2, 3, 4], product=False)
    print(f"one task after another  {right(chain):.1f}% right")
    print(f"product of the tasks    {right(whole):.1f}% right")
    same = torch.equal(learned([3, 1, 4, 0, 2]).predict(x_test), whole.predict(x_test))
    print(f"another order of the tasks gives the same bits: {same}")
    print(f"without the task of 8 and 9, of these {right(whole - learned([4]), 8):.1f}% right")
    return {"chain": right(chain), "product": right(whole), "same bits": same}


if __name__ == "__main__":
    main()
