"""The networks of the benchmarks."""

from torch import nn


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """A network with two hidden layers of the same width."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def released_mnist(outputs: int) -> nn.Module:
    """The network of the paper's code, with a linear output instead of Linear + ReLU."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *mlp(16 * 28 * 28, 400, outputs),  # type: ignore[misc]
    )


def wide_cifar(channels: int, outputs: int) -> nn.Module:
    """One wide convolution, averaged over quarters of the image, and a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 6, stride=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, outputs),
    )


def released_cifar(outputs: int) -> nn.Module:
    """The convolutional network of the paper's code, with a linear output."""
    layers: list[nn.Module] = []
    before = 3
    for width, stride, padding in ((16, 1, 1), (32, 2, 1), (64, 2, 1), (128, 2, 1), (256, 2, 0)):
        layers += [nn.Conv2d(before, width, 3, stride, padding), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *mlp(256, 2000, outputs))  # type: ignore[misc]
