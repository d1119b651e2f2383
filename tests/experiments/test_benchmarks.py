"""What settings mean for a benchmark's scenario."""

import pytest

from orderless.experiments import benchmarks
from orderless.methods.settings import Settings


@pytest.mark.parametrize(("setting", "augmented"), [("flip-crop", True), ("none", False)])
def test_cifar_images_are_augmented_unless_told_otherwise(setting, augmented, monkeypatch):
    asked = {}
    monkeypatch.setattr(benchmarks, "SplitCIFAR100", lambda kind, **options: asked.update(options))
    build = benchmarks.find_benchmark("splitcifar100").scenario
    build("domain", Settings(augment=setting), 0, None, "cpu")
    assert asked["augment"] is augmented


def test_other_augmentations_are_refused():
    with pytest.raises(ValueError, match="augment must be one of flip-crop, none"):
        Settings(augment="rotate")
