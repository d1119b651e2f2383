"""How products are carried out on a GPU, and that it is undone."""

from __future__ import annotations

import pytest
import torch

from orderless.ensemble.device import matrix_precision

CUDNN = torch.backends.cudnn


def settings() -> list[str]:
    """Of matrix products, convolutions and recurrent layers."""
    switches = torch.backends.cuda.matmul, CUDNN.conv, CUDNN.rnn
    return [switch.fp32_precision for switch in switches]


@pytest.mark.parametrize(("precision", "wanted"), [("float32", "ieee"), ("tf32", "tf32")])
def test_every_kind_of_product_has_the_precision_asked_for(precision: str, wanted: str) -> None:
    before = settings()
    with matrix_precision(precision, torch.device("cuda")):
        assert settings() == [wanted] * 3
        with matrix_precision("float32", torch.device("cuda")):
            assert settings() == ["ieee"] * 3
        assert settings() == [wanted] * 3
    assert settings() == before
