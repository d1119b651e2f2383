"""Try what is installed in an empty environment, and look into the wheels: `make wheel`."""

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F

import orderless as ol

LARGEST = 400_000  # bytes of the library's wheel


def look_into(wheel: Path) -> None:
    """The library's wheel is small and holds the library alone."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
    odd = [name for name in names if not name.startswith("orderless/")]
    odd += [name for name in names if not name.endswith((".py", "/py.typed"))]
    assert not odd, odd
    assert wheel.stat().st_size < LARGEST, wheel.stat().st_size


def learn() -> None:
    """The exact head, the product, a weighted filter, and what is saved."""
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()

    head = ol.ExactHead(ol.features.RandomReLU(2, 256), classes=2)
    head.update(x, y)
    assert (head.predict(x).argmax(1) == y).float().mean() > 0.9
    with tempfile.TemporaryDirectory() as folder:
        path = ol.save(Path(folder) / "head.safetensors", head)
        loaded = ol.load(path, into=ol.ExactHead(ol.features.RandomReLU(2, 256), classes=2))
        assert torch.equal(loaded.predict(x), head.predict(x))

    loss = ol.per_particle(F.cross_entropy)
    particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=4, seed=0)
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    info = pf.step(lambda: loss(particles(x), y))
    assert (info.loss_after < info.loss_before).all()

    particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=1, seed=0)
    product = ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.1))
    for _ in range(20):
        product.step(lambda: loss(particles(x), x[:, 0].gt(0).long()))
    product.end_task((x, x[:, 0].gt(0).long()))
    assert (product.predict(x).argmax(1) == x[:, 0].gt(0)).float().mean() > 0.8


def command(*words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("orderless"))
    return subprocess.run([program, *words], capture_output=True, text=True)


def run() -> str:
    """Try the command line; what is installed."""
    if importlib.util.find_spec("typer") is None:
        said = command("--help")
        assert said.returncode == 1 and "pip install 'orderless[cli]'" in said.stderr, said
        return "alone"
    said = command("--help")
    assert said.returncode == 0 and "verify-deletion" in said.stdout, said
    with tempfile.TemporaryDirectory() as folder:
        demo = ["--preset", "demo", "--permutations", "1", "--methods", "gd,product"]
        said = command("run", "splitmnist", *demo, "--out", folder)
    if importlib.util.find_spec("orderless_lab") is None:
        assert said.returncode == 2 and "pip install ./lab" in said.stderr, said
        assert said.stderr.count("\n") == 1, said
        return "with its command line"
    assert said.returncode == 0 and "2 cells computed" in said.stdout, said
    return "with the lab"


(library,) = Path(sys.argv[1]).glob("orderless-*.whl")
look_into(library)
learn()
print(f"orderless {ol.__version__} on Python {sys.version.split()[0]} works {run()}")
