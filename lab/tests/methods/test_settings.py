"""Settings: what they may be, how the command line writes them, and the presets."""

import pytest

from orderless_lab.methods import METHODS, Settings
from orderless_lab.methods.consolidations import EWCSettings
from orderless_lab.suites import SUITES, find_suite
from orderless_lab.suites.procgen import LifelongSettings
from orderless_lab.suites.splitcifar100 import SplitCIFAR100Settings
from orderless_lab.suites.splitmnist import SplitMNISTSettings

MNIST = SplitMNISTSettings()
HUGE = "9" * 30

BAD = [
    ("lr=-1", "greater than 0"),
    ("lr=nan", "finite"),
    ("lr=inf", "finite"),
    ("batch_size=0", "greater than or equal to 1"),
    ("iterations=0", "greater than or equal to 1"),
    ("chunk_size=0", "greater than or equal to 1"),
    ("fisher_samples=0", "greater than or equal to 1"),
    ("precision=fp8", "'float32', 'tf32' or 'bf16'"),
    ("fisher=foo", "'exact', 'sampled' or 'empirical'"),
    ("ewc_strength=-1", "greater than or equal to 0"),
    ("loss_scale=0", "greater than 0"),
    ("perturb_low=1", "perturb_low must be at most perturb_high=0.04, got 1.0"),
    ("min_ess=101", "min_ess must lie between 1 and particles=100, got 101.0"),
    ("validation=1", "less than 1"),
    ("lr=fast", "valid number"),
    ("batch_size=8.5", "valid integer"),
    ("lr=none", "valid number"),
    (f"hidden={HUGE}", "less than or equal to"),
    (f"exact_features={HUGE}", "less than or equal to"),
    (f"order_seed={HUGE}", "less than"),
    ("exact_feature=1", "did you mean 'exact_features'"),
    ("lr", "key=value"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_bad_values_are_refused_with_a_sentence(text, words):
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        MNIST.with_text([text])
    said = str(caught.value)
    assert words in said and text.split("=")[0] in said


def test_texts_become_values():
    settings = MNIST.with_text(
        ["lr=3e-4", "iterations=7", "min_ess=5", "fisher_samples=None", "network=released"]
    )
    assert (settings.lr, settings.iterations, settings.min_ess) == (3e-4, 7, 5.0)
    assert settings.own(EWCSettings).fisher_samples is None and settings.network == "released"
    assert settings.fisher_samples is None  # a method's own setting is an attribute, too
    assert MNIST.with_text([]) == MNIST
    # none is a value here, and not a missing one
    assert SplitCIFAR100Settings().with_text(["augment=none"]).augment == "none"


def test_a_setting_that_nobody_reads_is_refused():
    with pytest.raises(ValueError, match="'learning_rate' is no setting here"):
        SplitMNISTSettings(learning_rate=1.0)
    with pytest.raises(ValueError, match="'source' is no setting here"):
        LifelongSettings(source="full")  # ProcGen has nothing to do with MNIST
    with pytest.raises(ValueError, match="network=wide: "):
        MNIST.with_text(["network=wide"])  # the network of another suite


def test_a_record_holds_every_value_and_only_what_is_read_is_compared():
    gd = METHODS["gd"]
    settings = SplitMNISTSettings(lr=0.5)
    flat = settings.flat(gd)
    assert flat["lr"] == 0.5 and flat["particles"] == 100 and "ewc_strength" not in flat
    assert settings.changed(particles=3).differs(flat, gd) is None
    assert settings.changed(lr=0.1).differs(flat, gd) == "lr=0.5, not 0.1"
    assert settings.changed(ewc_mode="online").flat(METHODS["ewc"])["ewc_mode"] == "online"


@pytest.mark.parametrize("name", [name for name in SUITES if name != "tiny"])
def test_every_setting_has_a_sentence(name):
    for key, field in find_suite(name).settings.known().items():
        assert field.description and field.description.endswith((".", ")")), key


def test_two_settings_cannot_share_a_name(monkeypatch):
    class Mine(Settings):
        lr: float = 0.1
        """Mine."""

    monkeypatch.setitem(METHODS, "gd", METHODS["gd"].__class__(name="gd", settings=Mine))
    with pytest.raises(ValueError, match="two settings are called lr: rename the one in Mine"):
        SplitMNISTSettings()


def test_presets_are_the_protocols():
    suite = find_suite("splitmnist")

    def has(name, **values):
        flat = suite.preset(name).settings.flat()
        assert {key: flat[key] for key in values} == values

    has("demo", source="embedded", network="mlp", hidden=100, batch_size=32, optimizer="sgd")
    full = {"source": "full", "network": "mlp", "hidden": 400, "batch_size": 128, "epochs": 1}
    usual = {"init": "fresh", "particles": 100, "weighting": "trapezoid"}
    for name, rate in (("table1", 3e-3), ("table1-low", 1e-4), ("table1-high", 1e-1)):
        has(name, **full, **usual, optimizer="sgd", lr=rate)
    has("table1-adam", **full, optimizer="adam", adam_lr=1e-3, particles=100)
    has("paper", network="released", batch_size=8, lr=0.01, init="perturb", normalize="symmetric")
    has("paper", perturb_low=0.001, perturb_high=0.04, particles=100, epochs=1)
    has("strong", optimizer="adam", adam_lr=1e-3, iterations=2000, batch_size=128, hidden=400)
    has("strong", assign="random", fisher="exact", fisher_samples=None, ewc_mode="separate")
    counts = {name: preset[1:] for name, preset in suite.presets("domain").items()}
    assert counts["demo"] == (3, 1) and counts["table1"] == (10, 3) and counts["strong"] == (1, 20)
    cifar = find_suite("splitcifar100")
    assert cifar.preset("table1").settings.lr == 1e-2
    assert cifar.preset("table1-adam").settings.adam_lr == 1e-4
