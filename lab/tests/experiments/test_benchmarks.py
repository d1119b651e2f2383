"""What settings mean for a benchmark's scenario."""

import pytest
from lab.tests.experiments.tiny import tiny_scenario
from lab.tests.scenarios.tiny_files import write_tiny_cifar100

from orderless_lab.experiments.benchmarks import find_benchmark
from orderless_lab.methods.settings import Settings


def images(batch):
    return {image.numpy().tobytes() for image in batch}


@pytest.mark.parametrize(("setting", "augmented"), [("flip-crop", True), ("none", False)])
def test_cifar_images_are_augmented_unless_told_otherwise(
    setting, augmented, tmp_path, monkeypatch
):
    write_tiny_cifar100(tmp_path, monkeypatch)
    build = find_benchmark("splitcifar100").scenario
    scenario = build("domain", Settings(augment=setting), 0, str(tmp_path), "cpu")
    stored = images(scenario.train_set(0)[0])
    ((drawn, _),) = scenario.batches(0, batch_size=20, seed=0)
    assert (images(drawn) != stored) is augmented


def test_a_network_for_images_is_refused_where_there_are_none():
    scenario, network = tiny_scenario(), find_benchmark("intents").network
    assert network(scenario, Settings(hidden=4))()
    with pytest.raises(ValueError, match="released is for splitmnist and splitcifar100"):
        network(scenario, Settings(network="released"))
    with pytest.raises(ValueError, match="wide is for splitcifar100: use network=mlp"):
        find_benchmark("splitmnist").network(scenario, Settings(network="wide"))


def test_other_augmentations_are_refused():
    with pytest.raises(ValueError, match="augment must be one of flip-crop, none"):
        Settings(augment="rotate")
