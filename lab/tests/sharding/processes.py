"""The same work in several processes that talk by gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.processes import warm_context


def on_ranks(ranks: int, folder: Path, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(group, *args)` returned on each of so many ranks (tensors and plain values)."""
    context = warm_context()
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        context.Process(target=_rank, args=(rank, ranks, str(folder), work, args))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def _rank(
    rank: int, ranks: int, folder: str, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    result = work(dist.group.WORLD, *args)
    torch.save(result, f"{folder}/{rank}.pt")
    dist.barrier()  # nobody leaves while another still listens
    dist.destroy_process_group()
