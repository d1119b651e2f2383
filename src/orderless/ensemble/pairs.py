"""The data that `end_task` takes: two tensors (x, y), or batches of such pairs."""

from collections.abc import Iterable, Iterator

from torch import Tensor

Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
EXPECTED = (
    "data must be two tensors (x, y) with as many labels as samples, or batches of such pairs as "
    "a DataLoader gives them"
)


def is_pair(data: object) -> bool:
    return isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor)


def pairs(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over the pairs and check each."""
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise TypeError(f"{EXPECTED}, got {_shape(data)}")
    for batch in [data] if is_pair(data) else data:
        tensors = [t for t in batch if isinstance(t, Tensor) and t.dim()] if is_pair(batch) else []
        if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]):
            raise ValueError(f"{EXPECTED}, got {_shape(batch)}")
        yield tensors[0], tensors[1]


def _shape(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {list(found.shape)}"
    if isinstance(found, (tuple, list)):
        return f"({', '.join(map(_shape, found))})"
    return type(found).__name__
