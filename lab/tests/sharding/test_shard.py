"""Who holds which particles, and what they tell each other, against plain indexing."""

import pytest
import torch
import torch.distributed as dist
from lab.tests.sharding.processes import on_ranks
from torch import nn

import orderless as ol
from orderless.ensemble.sharding import Shard

N = 7


def rows(n: int = N) -> list[torch.Tensor]:
    """Something of each particle, in several shapes and types."""
    return [
        torch.arange(n * 6, dtype=torch.float32).view(n, 2, 3) / 7,
        torch.arange(n, dtype=torch.float64).exp(),
        torch.arange(n) % 3,
        torch.arange(n) % 2 == 0,
    ]


def talk(group, chosen):
    shard, sent = Shard(N, group), []
    mine = [shard.local(each).clone() for each in rows()]
    before = dist.batch_isend_irecv

    def counting(messages):
        sent.extend(m.tensor.shape[0] for m in messages if m.op is dist.isend)
        return before(messages)

    dist.batch_isend_irecv = counting
    result = {
        "span": [shard.start, shard.stop, shard.count],
        "gathered": [shard.gather(each) for each in mine],
        "sum": shard.sum(mine[1].sum()),
        "picked": [shard.pick(mine[0], i) for i in range(N)],
        "collected": [shard.collect(each) for each in mine],
        "state": shard.collect_all({"a": [mine[0], torch.tensor(3.0), "text"], "b": None}),
    }
    shard.exchange(mine, torch.tensor(chosen))
    return {**result, "moved": mine, "sent": sum(sent)}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_hears_the_same_and_it_is_what_one_process_has(ranks, tmp_path):
    chosen = [6, 6, 0, 3, 4, 1, 6]
    results = on_ranks(ranks, tmp_path, talk, chosen)
    spans = [range(*result["span"][:2]) for result in results]
    assert [i for span in spans for i in span] == list(range(N))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1
    for result, span in zip(results, spans, strict=True):
        assert result["span"][2] == len(span)
        assert all(map(torch.equal, result["gathered"], rows()))
        assert result["sum"] == pytest.approx(rows()[1].sum().item())
        assert torch.equal(torch.stack(result["picked"]), rows()[0])
        for tensor, all_rows in zip(result["moved"], rows(), strict=True):
            assert torch.equal(tensor, all_rows[chosen][span.start : span.stop])
    assert all(map(torch.equal, results[0]["collected"], rows()))
    first = results[0]["state"]
    assert torch.equal(first["a"][0], rows()[0]) and first["a"][1:] == [3.0, "text"]
    # a particle that several others become travels to their rank once, the others not at all
    crossing = {(i, r) for r, s in enumerate(spans) for i in chosen[s.start : s.stop] if i not in s}
    assert sum(result["sent"] for result in results) == len(rows()) * len(crossing)


@pytest.mark.slow
def test_particles_that_stay_are_not_sent(tmp_path):
    results = on_ranks(2, tmp_path, talk, list(range(N)))
    assert [result["sent"] for result in results] == [0, 0]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def build(group):
    with pytest.raises(ValueError, match="n=1 cannot be spread over 3 ranks: use at most 1"):
        ol.Ensemble(network, 1, group=group)
    particles = ol.Ensemble(network, N, ol.Perturb(base="fresh"), seed=4, group=group)
    single = [particles[i].state_dict() for i in range(N)]
    particles.load_particle(5, network().requires_grad_(False).apply(ones))
    again = ol.Ensemble.from_modules([particles[i] for i in range(N)], group=group)
    with pytest.raises(ValueError, match=f"needs {particles.shard.count} entries along axis 0"):
        particles(torch.zeros(N, 2, 3), per_particle=True)
    return {
        "n": [particles.n, len(particles)],
        "single": single,
        "state": particles.shard.collect_all(dict(particles.state_dict())),
        "stacked again": again.shard.collect_all(dict(again.state_dict())),
    }


def ones(layer: nn.Module) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter.fill_(1.0)


@pytest.mark.slow
def test_particle_i_is_the_same_on_any_rank(tmp_path):
    whole = ol.Ensemble(network, N, ol.Perturb(base="fresh"), seed=4)
    for result in (results := on_ranks(3, tmp_path, build)):
        assert result["n"] == [N, N]
        for i in range(N):
            expected = whole[i].state_dict()
            assert all(torch.equal(result["single"][i][name], expected[name]) for name in expected)
    whole.load_particle(5, network().requires_grad_(False).apply(ones))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(results[0]["state"][name], tensor)
        assert torch.equal(results[0]["stacked again"][name], tensor)
