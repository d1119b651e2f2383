"""Try the installed wheel where no extra is installed: `make wheel`."""

import subprocess
import sys
from pathlib import Path

import torch

import orderless as ol

features = ol.Ensemble(lambda: ol.features.RandomReLU(2, 64), n=2, seed=0)
rb = ol.ExactHead(features, weights="uniform", classes=2)
x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] * x[:, 1] > 0).long()
rb.update(x, y)
assert (rb.predict(x).argmax(1) == y).float().mean() > 0.9

command = Path(sys.executable).with_name("orderless")
said = subprocess.run([command, "--help"], capture_output=True, text=True)
assert said.returncode == 1 and "pip install 'orderless[cli]'" in said.stderr, said
print(f"orderless {ol.__version__} on Python {sys.version.split()[0]}: the wheel works by itself")
