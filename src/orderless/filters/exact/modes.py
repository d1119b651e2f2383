"""What is exact must not depend on the modes of torch that a caller happens to be in."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def in_plain_mode(method: Method) -> Method:
    """Run a filter's method outside of autocast, autograd and inference mode.

    Autocast would compute features in half precision, and to sums that were made in inference mode
    nothing could be added afterwards.
    """

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        no_autocast = torch.autocast(self.particles.device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), no_autocast:
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]
