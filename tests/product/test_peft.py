"""LoRA adapters as PEFT puts them into a transformer: merged, task by task, without an order."""

from __future__ import annotations

import pytest
import torch
from tests.product.tasks import cross_entropy
from torch import Tensor, nn

import orderless as ol

pytestmark = pytest.mark.slow


class Classifier(nn.Module):
    """A small BERT with adapters; a sentence's first word tells its class."""

    def __init__(self) -> None:
        super().__init__()
        peft = pytest.importorskip("peft")  # seconds: only where the test is run
        transformers = pytest.importorskip("transformers")
        sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_labels": 4}
        more = {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 8}
        config = transformers.BertConfig(**sizes, **more)
        adapters = peft.LoraConfig("SEQ_CLS", r=4, target_modules=["query", "value"])
        bert = transformers.BertForSequenceClassification(config)
        self.bert = peft.get_peft_model(bert, adapters)

    def forward(self, words: Tensor) -> Tensor:
        return self.bert(input_ids=words).logits


def tasks() -> list[tuple[Tensor, Tensor]]:
    generator, y = torch.Generator().manual_seed(0), torch.arange(32) % 4
    words = torch.randint(10, 50, (3, 32, 8), generator=generator)
    words[:, :, 0] = y
    return [(each, y) for each in words]


def learned(order: list[int], network: nn.Module, n: int) -> ol.PosteriorProduct:
    particles = ol.Ensemble.from_modules([network] * n)
    pf = ol.PosteriorProduct(particles, lambda p: torch.optim.Adam(p, lr=1e-2))
    for task in order:
        x, y = tasks()[task]
        for _ in range(15):
            pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
        pf.end_task((x, y))
    return pf


@pytest.mark.parametrize("n", [1, 2])
def test_adapters_of_peft_are_merged_in_any_order(n: int) -> None:
    torch.manual_seed(0)
    network = Classifier()
    frozen = {name: p.clone() for name, p in network.named_parameters() if not p.requires_grad}
    pf, (x, y) = learned([0, 1, 2], network, n), tasks()[1]
    assert torch.equal(pf.predict(x), learned([2, 0, 1], network, n).predict(x))
    assert float((pf.predict(x).argmax(1) == y).double().mean()) > 0.9
    assert all("lora_" in name or "classifier" in name for name in pf.layers)
    merged = dict(pf.networks[0].named_parameters())
    assert all(torch.equal(merged[name], before) for name, before in frozen.items())
