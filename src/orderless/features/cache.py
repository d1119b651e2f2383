"""A backbone's features of a data set, computed once and stored in the user's cache."""

import hashlib
import sys
from collections.abc import Callable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..storage import user_cache, write_atomically
from .backbone import Backbone

_PORTION = 512  # samples between two reports

Progress = Callable[[int, int], None]
"""Called with (samples so far, samples in all)."""


def on_terminal(done: int, total: int) -> None:
    """Show progress if stderr is a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rfeatures of {done} of {total} samples", end=end, file=sys.stderr, flush=True)


@torch.no_grad()
def cached(backbone: Backbone, x: Tensor, progress: Progress = on_terminal) -> Tensor:
    """`backbone(x)`, from the user's cache if it was computed before under the same conditions.

    The file's name is a hash of the backbone's fingerprint, its projection and x.
    """
    digest = hashlib.sha256(backbone.fingerprint(x.device).encode())
    digest.update(repr((backbone, x.dtype, tuple(x.shape))).encode())
    for part in (*backbone.state_dict().values(), *x.split(4096)):
        digest.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    file = user_cache() / "features" / f"{digest.hexdigest()}.safetensors"
    if file.is_file():
        try:
            return load_file(file)["features"].to(x.device)
        except (SafetensorError, KeyError):
            pass  # damaged: compute and write it again
    parts, done = [], 0
    for part in x.split(_PORTION):
        parts.append(backbone(part).cpu())
        done += len(part)
        progress(done, len(x))
    features = torch.cat(parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, save({"features": features}))
    return features.to(x.device)
