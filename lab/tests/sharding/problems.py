"""Small problems for every filter, solved by one process or by the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless_lab.optim import TRAC

N, STEPS = 7, 6
FIRST_RANK = (0, 1, 2)  # of two ranks; of three it has 0 and 1
Result = dict[str, Any]
cross_entropy = ol.per_particle(F.cross_entropy)


class Network(nn.Module):
    """Dropout, normalisation, and a fuse: where that is negative, the loss is NaN.

    No bias before the normalisation: it would have no gradient but rounding errors, and Adam makes
    steps of full length out of those.
    """

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(6, 8, bias=False)
        self.body = nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)
        self.fuse = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) * self.fuse.sqrt()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, seed: int = 7) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(16, 6, generator=generator) for _ in range(count)]
    return [(x, x[:, :3].argmax(1)) for x in inputs]


def sgd(particles: ol.Ensemble) -> torch.optim.Optimizer:
    return torch.optim.SGD(particles.parameters(), lr=0.1)


def adam(particles: ol.Ensemble) -> torch.optim.Optimizer:
    return torch.optim.Adam(particles.parameters(), lr=0.05)


def trac(particles: ol.Ensemble) -> torch.optim.Optimizer:
    return TRAC(adam(particles))


def gradient_filter(
    kind: type, particles: ol.Ensemble, optimizer: Callable = sgd, **options: Any
) -> Any:
    return kind(particles, optimizer(particles), **options)


wpf = partial(gradient_filter, ol.WeightedParticleFilter)
averaging = partial(gradient_filter, ol.AveragingParticles)


def bootstrap(particles: ol.Ensemble, **options: Any) -> ol.BootstrapParticleFilter:
    return ol.BootstrapParticleFilter(particles, perturbation=0.1, **options)


def gaussian_sum(particles: ol.Ensemble, curvature: str) -> ol.GaussianSumFilter:
    return ol.GaussianSumFilter(particles, sigma2=0.01, curvature=curvature)


def consolidate(kind: type, pf: Any, **options: Any) -> Any:
    consolidation = kind(pf.particles, 0.5, **options)
    pf.register(consolidation)
    return consolidation


# ------------------------------------------------------------------ filters fed by closures


def train(
    group: Any,
    make_filter: Callable[[ol.Ensemble], Any],
    network: Callable[[], nn.Module] = Network,
    hold: Callable[[Any], Any] | None = None,
    spoil: tuple[int, ...] = (),
    chunk_size: int | None = None,
    start: tuple[int, Result] | None = None,
    stop: int = STEPS,
) -> Result:
    """Six steps, with another task from the fourth on; or some of them, from a saved state."""
    particles = ol.Ensemble(network, N, seed=3, chunk_size=chunk_size, group=group)
    pf = make_filter(particles)
    held = None if hold is None else hold(pf)
    first, saved = (0, None) if start is None else start
    if saved is not None:
        pf.load_state_dict(saved["state"])
        if held is not None:
            held.load_state_dict(saved["held"])
    info = None
    for step, (x, y) in list(enumerate(batches(STEPS)))[first:stop]:
        if held is not None and step == 3:
            held.end_task((x, y))
        if step == 2:
            break_fuses(particles, spoil)
        penalty = None if held is None else partial(held.penalty, x)
        closure = partial(losses, particles, x, y)
        info = pf.step(closure) if penalty is None else pf.step(closure, penalty=penalty)
    return {
        **answers(pf, batches(1, seed=8)[0][0]),
        "info": {} if info is None else {k: v for k, v in vars(info).items() if v is not None},
        "state": pf.state_dict(),
        "held": None if held is None else held.state_dict(),
    }


def losses(particles: ol.Ensemble, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(particles(x), y)


@torch.no_grad()
def break_fuses(particles: ol.Ensemble, which: tuple[int, ...]) -> None:
    for index in which:
        broken = particles[index]
        broken.fuse.fill_(-1.0)
        particles.load_particle(index, broken)


def answers(pf: ol.ParticleFilter, x: Tensor) -> Result:
    return {
        "log_weights": pf.log_weights,
        "raw_log_weights": pf.raw_log_weights,
        "ess": pf.ess,
        "temperature": pf.temperature,
        "log_evidence": pf.log_evidence,
        "alive": pf.alive,
        "probs": pf.predict(x),
        "logits": pf.predict(x, combine="logits"),
    }


def none_left(group: Any) -> Result:
    """All particles break: what is said, and whether anything else has changed."""
    particles = ol.Ensemble(Network, N, group=group)
    pf = wpf(particles, adam)
    data = batches(3)
    for x, y in data[:2]:
        pf.step(partial(losses, particles, x, y))
    break_fuses(particles, tuple(range(N)))
    before = pf.state_dict()
    try:
        pf.step(partial(losses, particles, *data[2]))
    except FloatingPointError as error:
        return {"said": str(error), "before": before, "after": pf.state_dict()}
    return {"said": "nothing"}


SOLVERS: dict[str, Callable[[Any], Result]] = {
    "wpf": partial(train, make_filter=wpf),
    "wpf, linearized": partial(train, make_filter=partial(wpf, weighting="linearized")),
    "wpf, tempered": partial(train, make_filter=partial(wpf, min_ess=5.0, loss_scale=20.0)),
    "wpf, clipped": partial(train, make_filter=partial(wpf, max_grad_norm=0.05)),
    "wpf in chunks": partial(train, make_filter=wpf, chunk_size=2),
    "wpf with Adam, the first rank's particles dead": partial(
        train, make_filter=partial(wpf, optimizer=adam), spoil=FIRST_RANK
    ),
    "averaging with TRAC, one dead": partial(
        train, make_filter=partial(averaging, optimizer=trac), spoil=(4,)
    ),
    "averaging": partial(train, make_filter=averaging),
    "EWC + wpf": partial(
        train, make_filter=wpf, hold=partial(consolidate, ol.EWC, fisher="sampled"), network=plain
    ),
    "SI + wpf": partial(train, make_filter=wpf, hold=partial(consolidate, ol.SI)),
    "LwF + wpf": partial(
        train, make_filter=partial(wpf, weigh_penalty=True), hold=partial(consolidate, ol.LwF)
    ),
    **{
        f"bootstrap, {scheme}": partial(train, make_filter=partial(bootstrap, resampling=scheme))
        for scheme in ("systematic", "stratified", "multinomial", "residual")
    },
    "bootstrap, sir": partial(
        train, make_filter=partial(bootstrap, variant="sir", ess_threshold=N - 0.01)
    ),
    **{
        f"Gaussian sum, {curvature}": partial(
            train, make_filter=partial(gaussian_sum, curvature=curvature), network=plain
        )
        for curvature in ("none", "diagonal", "full")
    },
    "none left": none_left,
}


def solve(group: Any) -> dict[str, Result]:
    return {name: solver(group) for name, solver in SOLVERS.items()}
