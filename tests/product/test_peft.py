"""LoRA adapters as PEFT puts them into a transformer: merged, task by task, without an order."""

import pytest
import torch
from tests.common import train
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


Y = torch.arange(32) % 4


def sentences(task: int) -> Tensor:
    words = torch.randint(10, 50, (32, 8), generator=torch.Generator().manual_seed(task))
    words[:, 0] = Y
    return words


def learned(order: list[int], network: nn.Module) -> ol.PosteriorProduct:
    particles = ol.Ensemble.from_modules([network, network])
    pf = ol.PosteriorProduct(particles, lambda p: torch.optim.Adam(p, lr=1e-2))
    for task in order:
        data = sentences(task), Y
        train(pf, [data] * 15)
        pf.end_task(data)
    return pf


def test_adapters_of_peft_are_merged_in_any_order() -> None:
    network = Classifier()
    pf = learned([0, 1, 2], network)
    x = sentences(1)
    assert torch.equal(pf.predict(x), learned([2, 0, 1], network).predict(x))
    assert float((pf.predict(x).argmax(1) == Y).double().mean()) > 0.9
    assert all("lora_" in name or "classifier" in name for name in pf.layers)
