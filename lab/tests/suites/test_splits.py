import numpy as np
import pytest
import torch

from orderless_lab.datasets import load_cifar100, load_mnist
from orderless_lab.suites import SplitCIFAR100, SplitMNIST
from orderless_lab.suites.scenario import to_unit
from orderless_lab.suites.splitcifar100 import flip_and_crop, imagenet_normalize
from orderless_lab.suites.splitmnist import to_symmetric


@pytest.fixture(scope="module")
def cifar_data(cifar100):
    return load_cifar100(cifar100.root)


@pytest.fixture(scope="module")
def split_cifar(cifar100):
    return SplitCIFAR100(root=cifar100.root)


# SplitMNIST


@pytest.mark.parametrize("assign", ["random", pytest.param("fixed", marks=pytest.mark.slow)])
def test_split_mnist_pairs_images_with_their_own_labels(mnist, assign):
    scenario = SplitMNIST("class", root=mnist.root, assign=assign, assign_seed=3, flatten=True)
    (x, y), (x_test, y_test) = load_mnist(mnist.root)
    for task, name in zip(scenario.tasks, scenario.task_names, strict=True):
        for label, digit in enumerate(int(digit) for digit in name.split("v")):
            assert torch.equal(task.x[task.y == label], x[y == digit].flatten(1))
            assert torch.equal(
                task.x_test[task.y_test == label], x_test[y_test == digit].flatten(1)
            )


def test_random_assignment_uses_every_digit_once_and_depends_on_its_seed_only():
    names = [
        SplitMNIST(source="embedded", assign="random", assign_seed=seed).task_names
        for seed in (0, 1, 2, 0)
    ]
    for assignment in names:
        assert sorted("".join(assignment).replace("v", "")) == list("0123456789")
    assert names[0] == names[3] and len({tuple(assignment) for assignment in names}) == 3


def test_embedded_split_mnist_needs_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ORDERLESS_DATA", str(tmp_path))
    scenario = SplitMNIST(source="embedded")
    assert scenario.task_names == ["0v1", "2v3", "4v5", "6v7", "8v9"]
    assert (scenario.kind, scenario.outputs, scenario.input_shape) == ("domain", 2, (1, 28, 28))
    assert all(task.y.bincount().tolist() == [400, 400] for task in scenario.tasks)
    assert all(task.y_test.bincount().tolist() == [100, 100] for task in scenario.tasks)


@pytest.mark.parametrize("flatten, shape", [(False, (1, 28, 28)), (True, (784,))])
@pytest.mark.parametrize("normalize", ["unit", "symmetric"])
def test_split_mnist_inputs(flatten, shape, normalize):
    scenario = SplitMNIST(source="embedded", flatten=flatten, normalize=normalize)
    assert scenario.input_shape == shape
    x, _ = next(scenario.batches(0, batch_size=8, seed=0))
    assert x.shape == (8, *shape) and x.dtype == torch.float32
    stored = scenario.tasks[0].x_test.double() / 255
    expected = stored if normalize == "unit" else (stored - 0.5) / 0.5
    torch.testing.assert_close(scenario.test_set(0)[0].double(), expected, rtol=0, atol=2e-7)


def test_validation_is_that_of_a_scenario():
    found = SplitMNIST(source="embedded", validation=0.1)
    expected = SplitMNIST(source="embedded").validation(0.1)
    for ours, theirs in zip(found.tasks, expected.tasks, strict=True):
        assert torch.equal(ours.x, theirs.x) and torch.equal(ours.x_test, theirs.x_test)


def test_unknown_options_are_named():
    for options in ({"source": "half"}, {"assign": "any"}, {"normalize": "none"}, {"kind": "all"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be one of"):
            SplitMNIST(**{"source": "embedded", **options})


# SplitCIFAR100


@pytest.mark.slow
def test_split_cifar100_follows_the_papers_table(split_cifar, cifar_data, superclasses):
    assert split_cifar.task_names == list(superclasses)
    assert (len(split_cifar), split_cifar.classes_per_task, split_cifar.outputs) == (20, 5, 5)
    fine = {name.replace("_", " "): label for label, name in enumerate(cifar_data.fine_names)}
    images, labels = cifar_data.x.numpy(), cifar_data.fine.numpy()
    test_images, test_labels = cifar_data.x_test.numpy(), cifar_data.fine_test.numpy()
    for task, classes in zip(split_cifar.tasks, superclasses.values(), strict=True):
        for label, name in enumerate(classes):
            expected = images[(labels == fine[name]).nonzero()]
            assert np.array_equal(task.x.numpy()[(task.y.numpy() == label).nonzero()], expected)
            expected = test_images[(test_labels == fine[name]).nonzero()]
            found = task.x_test.numpy()[(task.y_test.numpy() == label).nonzero()]
            assert np.array_equal(found, expected)


def test_cifar100_batches_are_augmented_and_test_images_are_not(tiny_cifar100):
    split_cifar = SplitCIFAR100(root=tiny_cifar100.root)
    x, y = next(split_cifar.batches(4, batch_size=16, seed=0))
    assert x.shape == (16, 3, 32, 32) and x.dtype == torch.float32 and y.dtype == torch.int64
    stored = split_cifar.tasks[4].x_test[:3].double().numpy() / 255
    expected = np.empty_like(stored)
    for channel, (mean, std) in enumerate(
        [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]  # torchvision's ImageNet constants
    ):
        expected[:, channel] = (stored[:, channel] - mean) / std
    np.testing.assert_allclose(split_cifar.test_set(4)[0][:3].numpy(), expected, atol=1e-6)


# Augmentation


def crop(image: np.ndarray, top: int, left: int, flipped: bool) -> np.ndarray:
    """One crop of the padded image as one would write it by hand."""
    padded = np.zeros((3, 14, 15), dtype=image.dtype)
    padded[:, 4:10, 4:11] = image
    window = padded[:, top : top + 6, left : left + 7]
    return window[:, :, ::-1] if flipped else window


def test_flip_and_crop_is_uniform_over_all_flips_and_places():
    count = 16_200
    image = np.random.default_rng(0).integers(1, 256, (3, 6, 7)).astype(np.uint8)
    batch = torch.from_numpy(image).expand(count, 3, 6, 7)
    result = flip_and_crop(batch, torch.Generator().manual_seed(0))
    assert result.shape == batch.shape and result.dtype == torch.uint8
    windows = {
        crop(image, top, left, flipped).tobytes(): 0
        for top in range(9)
        for left in range(9)
        for flipped in (False, True)
    }
    assert len(windows) == 162
    for window in result.numpy():
        windows[window.tobytes()] += 1  # a KeyError would be an image that no crop gives
    # 100 expected of each, standard deviation 10: six of them leave no room for chance.
    assert all(40 < number < 160 for number in windows.values())


def test_transforms_leave_the_data_alone():
    for transform in (to_unit, to_symmetric, imagenet_normalize):
        for dtype in (torch.uint8, torch.float32):
            x = torch.full((2, 3, 4, 4), 100, dtype=dtype)
            transform(x)
            assert (x == 100).all()
