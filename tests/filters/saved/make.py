"""Writes the files beside it: filters saved in the middle of learning, and where they went on to.

Run once with the version whose files are to be kept: `python -m tests.filters.saved.make`.
"""

import copy
from pathlib import Path

import torch
from tests.filters.oracles import batches, cross_entropy, dropout_mlp

import orderless as ol
from orderless.consolidation import SI

HERE = Path(__file__).parent


def make(kind: str):
    """(a filter, its consolidation or None) as it starts."""
    particles = ol.Ensemble(dropout_mlp, 3, seed=5)
    if kind == "bootstrap":
        return ol.BootstrapParticleFilter(particles, perturbation=0.1), None
    if kind == "gaussian sum":
        return ol.GaussianSumFilter(particles, sigma2=0.01, curvature="diagonal"), None
    if kind == "weighted":
        adam = torch.optim.Adam(particles.parameters(), lr=0.01)
        return ol.WeightedParticleFilter(particles, adam), None
    pf = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    consolidation = SI(particles)
    pf.register(consolidation)
    return pf, consolidation


KINDS = ("weighted", "averaging", "bootstrap", "gaussian sum")


def learn(pf, steps: slice):
    for x, y in list(batches(4))[steps]:
        pf.step(lambda x=x, y=y: cross_entropy(pf.particles(x), y))


def states(pf, consolidation) -> dict:
    state = {"filter": pf.state_dict()}
    return state if consolidation is None else {**state, "si": consolidation.state_dict()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in KINDS:
        pf, consolidation = make(kind)
        learn(pf, slice(0, 2))
        begun = copy.deepcopy(states(pf, consolidation))
        learn(pf, slice(2, 4))
        path = HERE / f"{kind.replace(' ', '_')}.safetensors"
        ol.save(path, {"begun": begun, "ended": states(pf, consolidation)})
