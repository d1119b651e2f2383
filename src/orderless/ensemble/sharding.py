"""Sharding of the particle axis over several processes, and their communication.

Rank r of R holds particles [start, stop) of N. A particle's initial values, dropout and noise are
keyed on its index among all N, so they do not depend on its rank. Ranks exchange a few numbers per
particle (`gather`), weighted sums (`sum`), and whole particles only for resampling (`exchange`) or
to read one of them (`pick`) or all of them (`collect`).

Without a group each of these returns its argument, so that filters need only one implementation.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map


class RankLost(Exception):
    """Another process of the group has died or does not answer.

    This is not an `OSError`, which during the writing of a file would be taken for a disk error.
    """


@contextmanager
def talking() -> Iterator[None]:
    """Turn the backend's error about a lost process into `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(
            "another rank is gone or does not answer; the last saved state can be loaded by any "
            "number of ranks"
        ) from error


class Shard:
    """Particles [start, stop) of n, held by this rank of a process group; all of them without one.

    Every rank calls the same methods in the same order. `count` is this rank's number of particles.
    """

    def __init__(self, n: int, group: Any = None) -> None:
        self.n, self.group = n, group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.ranks = 1 if group is None else dist.get_world_size(group)
        if n < self.ranks:
            raise ValueError(f"n={n} cannot be spread over {self.ranks} ranks: use at most {n}")
        self._bounds = [n * rank // self.ranks for rank in range(self.ranks + 1)]
        self.start, self.stop = self._bounds[self.rank], self._bounds[self.rank + 1]
        self.count = self.stop - self.start

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of an ensemble is sharded over the same processes

    def owner(self, index: int) -> int:
        """The rank that holds particle `index`."""
        return bisect_right(self._bounds, index) - 1

    def local(self, values: Tensor) -> Tensor:
        """This rank's part of `[N, ...]`."""
        return values if self.group is None else values[self.start : self.stop]

    def gather(self, values: Tensor) -> Tensor:
        """The ranks' `[count, ...]` as one `[N, ...]`, in the order of particles, on every rank."""
        if self.group is None:
            return values
        sizes = [stop - start for start, stop in pairwise(self._bounds)]
        padded = values.new_zeros(max(sizes), *values.shape[1:])
        padded[: self.count] = values.detach()
        parts = [torch.empty_like(padded) for _ in sizes]
        with talking():
            dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the ranks' tensors, on every rank."""
        if self.group is None:
            return part
        total = part.detach().clone()
        with talking():
            dist.all_reduce(total, group=self.group)
        return total

    def pick(self, values: Tensor, index: int) -> Tensor:
        """Row `index` of the ranks' `[count, ...]` as one `[N, ...]`, on every rank."""
        if self.group is None:
            return values[index]
        owner = self.owner(index)
        row = values.detach()[index - self.start if owner == self.rank else 0].clone()
        with talking():
            dist.broadcast(row, group=self.group, group_src=owner)
        return row

    @torch.no_grad()
    def exchange(self, tensors: list[Tensor], chosen: Tensor) -> None:
        """Replace particle i by a copy of particle chosen[i], `chosen` `[N]`; in place.

        A particle is sent to another rank at most once, whatever its number of copies there.
        """
        if self.group is None:
            for tensor in tensors:
                tensor.copy_(tensor[chosen])
            return
        wanted = chosen.tolist()
        peers = [rank for rank in range(self.ranks) if rank != self.rank]
        leaving = {peer: self._travellers(wanted, self.rank, peer) for peer in peers}
        coming = {peer: self._travellers(wanted, peer, self.rank) for peer in peers}
        here = [*range(self.start, self.stop), *[i for peer in peers for i in coming[peer]]]
        place = {particle: row for row, particle in enumerate(here)}
        rows = torch.tensor([place[i] for i in wanted[self.start : self.stop]])
        for tensor in tensors:
            arrived = self._swap(tensor.detach(), leaving, coming)
            tensor.copy_(torch.cat([tensor.detach(), *arrived])[rows.to(tensor.device)])

    def _travellers(self, wanted: list[int], source: int, target: int) -> list[int]:
        """The particles of the source rank that the target rank needs."""
        low, high = self._bounds[target : target + 2]
        return sorted({i for i in wanted[low:high] if self.owner(i) == source})

    def _swap(
        self, tensor: Tensor, leaving: dict[int, list[int]], coming: dict[int, list[int]]
    ) -> list[Tensor]:
        """Send rows of one tensor point to point; return the received rows, rank by rank."""
        arrived = {p: tensor.new_empty(len(i), *tensor.shape[1:]) for p, i in coming.items()}
        messages = []
        for peer, particles in leaving.items():
            if particles:
                rows = tensor[[i - self.start for i in particles]]
                messages.append(dist.P2POp(dist.isend, rows, group=self.group, group_peer=peer))
            if coming[peer]:
                into = arrived[peer]
                messages.append(dist.P2POp(dist.irecv, into, group=self.group, group_peer=peer))
        with talking():
            for request in dist.batch_isend_irecv(messages) if messages else []:
                request.wait()
        return list(arrived.values())

    def collect(self, values: Tensor) -> Tensor:
        """The ranks' `[count, ...]` as one `[N, ...]` in the first rank's host memory.

        The other ranks get their own part back.
        """
        if self.group is None:
            return values
        values = values.detach().contiguous()
        if self.rank > 0:
            with talking():
                dist.send(values, group=self.group, group_dst=0)
            return values
        parts = [values.cpu()]
        for rank in range(1, self.ranks):
            size = self._bounds[rank + 1] - self._bounds[rank]
            part = values.new_empty(size, *values.shape[1:])
            with talking():
                dist.recv(part, group=self.group, group_src=rank)
            parts.append(part.cpu())
        return torch.cat(parts)

    def collect_all(self, state: Any) -> Any:
        """`collect` for every tensor of a nested state that has a row per particle."""
        return state if self.group is None else _for_rows(state, self.count, self.collect)

    def local_all(self, state: Any) -> Any:
        """This rank's part of a nested state, as `collect_all` made it."""
        return state if self.group is None else _for_rows(state, self.n, self.local)


def _for_rows(state: Any, rows: int, function: Any) -> Any:
    """Apply a function to tensors with one row per particle, not to shared ones (step counts)."""

    def apply(leaf: Any) -> Any:
        of_particles = isinstance(leaf, Tensor) and leaf.shape[:1] == (rows,)
        return function(leaf) if of_particles else leaf

    return tree_map(apply, state)
