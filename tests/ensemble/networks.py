"""Networks of many kinds, each with inputs, for comparing an ensemble with its members."""

import torch
import torch.nn.functional as F
from tests.common import normal
from torch import Tensor, nn


class Functional(nn.Module):
    """Layers called by hand: positional, by keyword, without bias, on single samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.weight = nn.Parameter(torch.randn(5, 64))
        self.vector = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(input=x, weight=self.conv, stride=2, padding=1)
        one = F.conv2d(x[0].repeat(1, 1, 1)[:3], self.conv, None, 1, 1)
        x = F.avg_pool2d(input=x, kernel_size=1) + one.mean()
        x = F.linear(weight=self.weight, input=x.flatten(1))
        return F.linear(F.dropout(x, 0.0), self.vector)


class Filters(nn.Module):
    """A network that makes the weights of its own layers, with the particle axis in odd places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x)
        weight = made[:, 0].flatten(1)  # [B, 64]
        y = F.linear(x[:, 0].flatten(1), weight, made[:, 1, 0, 0])
        kernel = made[:, :3, :3, :3]
        z = F.conv2d(x, kernel, made[:, 2, 0, 0])
        scale = made[:, 3, 0, 0].contiguous()  # torch's own gradient is wrong for a strided one
        correlation = F.conv2d(made, made).flatten(1)  # a convolution's result as weight
        return y + z.mean((2, 3)) + correlation + F.batch_norm(y, None, None, scale, training=True)


class PerSample(nn.Module):
    """torch.func inside a forward: a vmap over samples and a gradient by the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def energy(sample: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(sample))).sum()

        return torch.vmap(energy)(x), torch.vmap(torch.func.grad(energy))(x)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.outlet = nn.Linear(8, 7, bias=False)
        self.outlet.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        hidden = self.embedding(tokens)
        attended, weights = self.attention(hidden, hidden, hidden)
        return {"logits": self.outlet(self.norm(hidden + attended)), "attention": weights}


class Spectrum(nn.Module):
    """A Fourier transform with a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x) * self.filter.to(torch.complex128)
        return self.head(torch.fft.irfft(spectrum, n=6))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 4, batch_first=True)
        self.rnn = nn.RNN(4, 3, batch_first=True)
        self.cells = nn.ModuleList([nn.LSTMCell(3, 3), nn.GRUCell(3, 3), nn.RNNCell(3, 3)])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.rnn(self.gru(self.lstm(x)[0])[0])[0][:, -1]
        return self.cells[2](self.cells[1](self.cells[0](hidden)[0]))


class Running(nn.Module):
    """Buffers that are assigned anew, counted up and filled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inlet(x)
        self.mean = 0.9 * self.mean + 0.1 * y.mean(0).detach()
        self.count += 1
        self.last.copy_(y[0].detach())
        return y - self.mean


def pooled(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Flatten())


def image_net(*convolution: object, **options: object) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(*convolution, **options)
    )


IMAGES, VECTORS, SEQUENCES, TOKENS = (3, 3, 8, 8), (5, 6), (2, 4, 6), (3, 5)
NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), VECTORS),
    "no bias": (lambda: nn.Linear(6, 3, bias=False), VECTORS),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 2)), SEQUENCES),
    "bilinear": (lambda: Pair(nn.Bilinear(6, 6, 2)), VECTORS),
    "conv": (lambda: image_net(4, 5, 3), IMAGES),
    "conv without bias": (lambda: image_net(4, 5, 3, bias=False), IMAGES),
    "grouped conv": (lambda: image_net(4, 6, 3, groups=2), IMAGES),
    "grouped first": (lambda: nn.Conv2d(3, 6, 3, groups=3), IMAGES),
    "depthwise": (lambda: image_net(4, 4, 3, groups=4, padding=1), IMAGES),
    "dilated": (lambda: image_net(4, 5, 3, dilation=2), IMAGES),
    "strided": (lambda: image_net(4, 5, (3, 2), stride=(2, 1), padding=(1, 0)), IMAGES),
    "same": (lambda: image_net(4, 5, 4, padding="same", dilation=2), IMAGES),
    "valid": (lambda: image_net(4, 5, 3, padding="valid"), IMAGES),
    "reflect": (lambda: image_net(4, 5, 3, padding=1, padding_mode="reflect"), IMAGES),
    "conv1d": (lambda: nn.Conv1d(4, 3, 2), SEQUENCES),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), IMAGES),
    "one image": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), IMAGES[1:]),
    "max pool": (lambda: pooled(nn.MaxPool2d(3, 2, 1, ceil_mode=True)), IMAGES),
    "average pool": (lambda: pooled(nn.AvgPool2d(2, count_include_pad=False)), IMAGES),
    "adaptive average": (lambda: pooled(nn.AdaptiveAvgPool2d((2, None))), IMAGES),
    "adaptive max": (lambda: pooled(nn.AdaptiveMaxPool2d(2)), IMAGES),
    "pool first": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 3)), IMAGES),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), IMAGES),
    "batch norm first": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), IMAGES),
    "batch norm 1d": (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), VECTORS),
    "batch norm on [B, C, L]": (
        lambda: nn.Sequential(nn.Conv1d(4, 3, 2), nn.BatchNorm1d(3)),
        SEQUENCES,
    ),
    "plain batch norm": (
        lambda: nn.Sequential(
            nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)
        ),
        VECTORS,
    ),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), IMAGES),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), VECTORS),
    "shared block": (lambda: Shared(), VECTORS),
    "functional": (Functional, IMAGES),
    "filters": (Filters, IMAGES),
    "torch.func inside": (PerSample, VECTORS),
    "recurrent": (Recurrent, SEQUENCES),
    "tied embedding": (Tokens, TOKENS),
    "bags of tokens": (lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.RMSNorm(4)), TOKENS),
    "spectrum": (Spectrum, VECTORS),
    "running buffers": (Running, VECTORS),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
        SEQUENCES,
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), VECTORS),
}


def inputs(shape: tuple[int, ...], seed: int = 2) -> Tensor:
    """Numbers, or tokens."""
    numbers = normal(*shape, seed=seed, dtype=torch.float64)
    return (2 * numbers).abs().long().clamp(max=6) if shape == TOKENS else numbers


class Pair(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x)


class Shared(nn.Module):
    """One block with BatchNorm under two names, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.again = self.block

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.block(self.block(x)))
