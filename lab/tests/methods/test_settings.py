"""Settings: what they may be, how the command line writes them, and the presets."""

from dataclasses import dataclass

import pytest

from orderless_lab.methods import METHODS, Config
from orderless_lab.methods.config import allowed
from orderless_lab.methods.policy_settings import PolicySettings
from orderless_lab.methods.presets import GRIDS, PRESETS, find_preset
from orderless_lab.methods.settings import Settings
from orderless_lab.methods.supervised import EWCSettings

BAD = [
    ("lr=-1", "lr must be a positive number, got -1.0"),
    ("lr=nan", "lr must be a positive number"),
    ("lr=inf", "lr must be a positive number"),
    ("adam_lr=0", "adam_lr must be a positive number"),
    ("batch_size=0", "batch_size must be at least 1, got 0"),
    ("epochs=-2", "epochs must be at least 1"),
    ("iterations=0", "iterations must be at least 1"),
    ("hidden=0", "hidden must be at least 1"),
    ("particles=0", "particles must be at least 1"),
    ("replay_buffer=0", "replay_buffer must be at least 1"),
    ("chunk_size=0", "chunk_size must be at least 1"),
    ("test_batch=0", "test_batch must be at least 1"),
    ("fisher_samples=0", "fisher_samples must be at least 1"),
    ("precision=fp8", "precision must be one of float32, tf32, bf16, got 'fp8'"),
    ("optimizer=foo", "optimizer must be one of sgd, adam, got 'foo'"),
    ("init=foo", "init must be one of fresh, perturb"),
    ("network=foo", "network must be one of mlp, released"),
    ("fisher=foo", "fisher must be one of exact, sampled, empirical"),
    ("weighting=foo", "weighting must be one of"),
    ("source=foo", "source must be one of full, embedded"),
    ("ewc_strength=-1", "ewc_strength must be 0 or larger"),
    ("perturbation=-0.1", "perturbation must be 0 or larger"),
    ("loss_scale=0", "loss_scale must be a positive number"),
    ("perturb_low=1", "perturb_low must be at most perturb_high=0.04, got 1.0"),
    ("min_ess=101", "min_ess must lie between 1 and particles=100, got 101.0"),
    ("min_ess=0", "min_ess must lie between 1"),
    ("validation=1", "validation must be a share below 1"),
    ("validation=-0.5", "validation must be 0 or larger"),
    ("lr=fast", "lr must be a number, got 'fast'"),
    ("batch_size=8.5", "batch_size must be a whole number, got '8.5'"),
    ("lr=none", "lr must be a number"),
    ("hidden=" + "9" * 30, "hidden must be at most 1,000,000, got 999"),
    ("rb_features=" + "9" * 30, "rb_features must be at most 1,000,000, got 999"),
    ("rb_particles=" + "9" * 30, "rb_particles must be at most 1,000,000, got 999"),
    ("replay_buffer=" + "9" * 30, "replay_buffer must be at most 1,000,000, got 999"),
    ("test_batch=" + "9" * 30, "test_batch must be at most 1,000,000, got 999"),
    ("particles=1000000000", "particles must be at most 1,000,000, got 1000000000"),
    ("iterations=" + "9" * 30, "iterations must be at most 1,000,000,000, got 999"),
    ("order_seed=" + "9" * 30, "order_seed must be at most"),
    ("learning_rate=1", "known key, got 'learning_rate=1'"),
    ("lr", "--set takes key=value"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD)
def test_bad_values_are_refused_with_a_sentence(text, sentence):
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        Settings().with_text([text])
    assert sentence in str(caught.value)


def test_texts_become_values():
    settings = Settings().with_text(
        ["lr=3e-4", "iterations=7", "min_ess=5", "fisher_samples=None", "network=released"]
    )
    assert (settings.lr, settings.iterations, settings.min_ess) == (3e-4, 7, 5.0)
    assert settings.of(EWCSettings).fisher_samples is None and settings.network == "released"
    assert Settings().with_text([]) == Settings()


def test_a_switch_is_true_or_false_and_nothing_else():
    @dataclass(frozen=True)
    class Switch(Config):
        on: bool = True

    values = allowed(Switch)["on"]
    assert values.parse("on", "True") is True and values.parse("on", "false") is False
    for text in ("0", "no", "off", ""):
        with pytest.raises(ValueError, match=f"on must be true or false, got '{text}'"):
            values.parse("on", text)


def test_a_whole_number_will_do_where_any_number_does():
    assert Settings(lr=1, ewc_strength=0).of(EWCSettings).ewc_strength == 0


def test_a_setting_that_nobody_reads_is_refused():
    with pytest.raises(ValueError, match="'learning_rate' is no setting; settings: adam_lr, ass"):
        Settings(learning_rate=1.0)
    with pytest.raises(ValueError, match="'source' is no setting"):
        PolicySettings(source="full")  # ProcGen has nothing to do with MNIST


def test_a_method_that_is_tuned_needs_its_strength():
    with pytest.raises(ValueError, match="ewc-tuned needs a strength.*--set ewc_tuned=VALUE"):
        METHODS["ewc-tuned"].check(EWCSettings())


def test_presets_are_the_protocols():
    def has(name, **values):
        preset = find_preset(name, "splitmnist")
        assert {key: preset.flat()[key] for key in values} == values

    has("demo", source="embedded", network="mlp", hidden=100, batch_size=32, optimizer="sgd")
    has("demo", particles=8)
    full = {"source": "full", "network": "mlp", "hidden": 400, "batch_size": 128, "epochs": 1}
    for name in ("table1", "table1-low"):
        has(name, **full, optimizer="sgd", init="fresh", particles=100, weighting="trapezoid")
    has("table1-low", lr=1e-4)
    for benchmark, rate in (("splitmnist", 3e-3), ("splitcifar100", 1e-2)):
        chosen, low = (find_preset(name, benchmark) for name in ("table1", "table1-low"))
        assert chosen.lr == rate and chosen.changed(lr=1e-4) == low
    has("table1-adam", **full, optimizer="adam", adam_lr=1e-3, particles=100)
    assert find_preset("table1-adam", "splitcifar100").adam_lr == 1e-4
    has("paper", network="released", batch_size=8, lr=0.01, init="perturb", normalize="symmetric")
    has("paper", perturb_low=0.001, perturb_high=0.04, particles=100, epochs=1)
    has("strong", optimizer="adam", adam_lr=1e-3, iterations=2000, batch_size=128, hidden=400)
    has("strong", assign="random", fisher="exact", fisher_samples=None, ewc_mode="separate")
    assert GRIDS["demo"] == (3, 1)
    assert GRIDS["table1"] == GRIDS["table1-low"] == (10, 3)
    assert GRIDS["paper"][0] == 10
    assert GRIDS["strong"] == (1, 20)
    assert set(GRIDS) == set(PRESETS)


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown preset 'x': choose from demo, table1"):
        find_preset("x", "splitmnist")
