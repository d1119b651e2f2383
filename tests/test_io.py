"""`save` and `load`: whole or not at all, and what is loaded goes on as what was saved."""

import copy
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.common import OPTIMIZERS, batches, gradient_filter, train
from torch import nn
from torch.testing import assert_close

import orderless as ol
from orderless.io import digest, new_file


def network(width: int = 8) -> nn.Module:
    layers = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3)
    return nn.Sequential(*layers)


FILTERS = {
    "weighted": partial(gradient_filter, optimizer=OPTIMIZERS["adam"], min_ess=2),
    "weighted sgd": partial(
        gradient_filter, optimizer=OPTIMIZERS["momentum"], weighting="linearized"
    ),
    "averaging": partial(gradient_filter, kind=ol.AveragingParticles),
    "bootstrap": lambda make, n, seed: ol.BootstrapParticleFilter(
        ol.Ensemble(make, n, seed=seed), perturbation=0.1, variant="sir"
    ),
}
DATA = list(batches(6, (5, 4)))


def make(name: str = "weighted", seed: int = 0, n: int = 4, width: int = 8):
    return FILTERS[name](lambda: network(width), n, seed=seed)


@pytest.mark.parametrize("name", FILTERS)
def test_a_loaded_filter_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Into a filter that started from another seed; and saving disturbs nothing."""
    uninterrupted, saved = make(name), make(name)
    train(uninterrupted, DATA)
    train(saved, DATA[:3])
    path = ol.save(tmp_path / "filter.safetensors", saved)
    assert digest(ol.load(path)) == digest(saved.state_dict())
    resumed = ol.load(path, into=make(name, seed=1))
    x = torch.randn(3, 4)
    for pf in (saved, resumed):
        train(pf, DATA[3:])
        assert digest(pf.state_dict()) == digest(uninterrupted.state_dict())
        assert torch.equal(pf.predict(x), uninterrupted.predict(x))


@pytest.mark.parametrize("name", ["weighted", "weighted sgd"])
def test_what_was_saved_on_a_gpu_goes_on_without_one(name: str) -> None:
    """There a recorded step has changed how the optimizer works."""
    uninterrupted, resumed = make(name), make(name)
    train(uninterrupted, DATA[:3])
    state = copy.deepcopy(uninterrupted.state_dict())
    for group in state["optimizer"]["param_groups"]:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
        group.update({"capturable": True} if "capturable" in group else {"fused": True})
    resumed.load_state_dict(state)
    for pf in (uninterrupted, resumed):
        train(pf, DATA[3:])
    # torch's fused kernel rounds otherwise
    assert_close(resumed.log_weights, uninterrupted.log_weights, rtol=0, atol=1e-5)


def refused(pf, path: Path, message: str) -> None:
    before = copy.deepcopy(pf.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        ol.load(path, into=pf)
    assert str(path) in str(caught.value)
    assert digest(pf.state_dict()) == digest(before)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"width": 9}, r"\(4, 8, 4\) there and \(4, 9, 4\)|\(4, 9, 4\) there and \(4, 8, 4\)"),
        ({"n": 5}, r"\(5, 8, 4\) there and \(4, 8, 4\) here"),
        ({"name": "averaging"}, "of a AveragingParticles, not of a WeightedParticleFilter"),
        ({"name": "weighted sgd"}, "another optimizer than Adam"),
    ],
)
def test_the_file_of_another_filter_is_refused(other: dict, message: str, tmp_path: Path) -> None:
    refused(make(), ol.save(tmp_path / "a", make(**other, seed=1)), message)


def test_an_ensemble_is_saved_by_itself_and_is_no_filter(tmp_path: Path) -> None:
    particles, other = ol.Ensemble(network, 4, seed=0), ol.Ensemble(network, 4, seed=1)
    path = ol.save(tmp_path / "a", particles)
    ol.load(path, into=other)
    assert digest(dict(other.state_dict())) == digest(dict(particles.state_dict()))
    refused(make(), path, "not the state of a WeightedParticleFilter")


def test_no_flipped_bit_and_no_missing_end_goes_unnoticed(tmp_path: Path) -> None:
    """In the sizes, the names, the values or the checksum itself."""
    state = {"x": torch.arange(4.0), "n": [1, "two", (3.5, None)]}
    path = ol.save(tmp_path / "a", state)
    whole = path.read_bytes()
    assert ol.save(tmp_path / "b", state).read_bytes() == whole
    for place in range(len(whole)):
        flipped = bytes([whole[place] ^ 1 << place % 8])
        for damaged in (whole[:place] + flipped + whole[place + 1 :], whole[:place]):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=str(path)):
                ol.load(path)


def test_a_file_of_another_version_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("orderless.io.FORMAT", 99)
    path = ol.save(tmp_path / "a", make())
    monkeypatch.undo()
    refused(make(), path, "its format is 99")


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "executed"),)

    (tmp_path / "a").write_bytes(pickle.dumps(Harmful()))
    refused(make(), tmp_path / "a", "is damaged or not written by orderless.save")
    assert not (tmp_path / "executed").exists()
    save_file({"x": torch.zeros(2)}, tmp_path / "b")
    refused(make(), tmp_path / "b", "is damaged or not written by orderless.save")


def test_a_place_without_a_file_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "nothing")):
        ol.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=f"{tmp_path} is not a file"):
        ol.load(tmp_path)
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "nowhere" / "a", tmp_path, file / "a"):
        with pytest.raises(OSError, match="cannot write") as caught:
            ol.save(path, {"x": 1})
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [file]


def test_nested_plain_values_and_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    x = torch.arange(6)
    state = {
        "floats": [0.1, float("inf"), -float("inf"), 1e-320, -0.0],
        "others": (None, True, 3, "ö/$tensor", ()),
        3: {"lr": 0.1, "betas": (0.9, 0.999), "empty": {}, "list": []},
        "$tensor": "a name that looks like a tag",
        "a/b": torch.tensor([True, False]),
        "a": {"b": torch.tensor(2.5, dtype=torch.float64)},
        "0": torch.arange(4).to(torch.bfloat16),
        0: x.view(2, 3).T,
        "shared": {"x": x, "y": x[2:]},
        "complex": torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128).conj(),
    }
    loaded = ol.load(ol.save(tmp_path / "a", state))
    assert list(loaded) == list(state) and loaded["others"] == state["others"]
    assert digest(loaded) == digest(state)
    nan = ol.load(ol.save(tmp_path / "b", {"x": float("nan")}))["x"]
    assert nan != nan


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="/model/f: a function"):
        ol.save(tmp_path / "a", {"model": {"f": lambda: 0}})
    with pytest.raises(TypeError, match="/s: a tensor is torch.sparse_coo"):
        ol.save(tmp_path / "a", {"s": torch.eye(3).to_sparse()})
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- writing


def test_a_new_file_has_its_name_once_it_is_whole(tmp_path: Path, monkeypatch) -> None:
    """Whatever stops it: Ctrl-C or a full disk."""
    path = tmp_path / "table.csv"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), new_file(path, "w") as file:
        file.write("half")
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(os, "fsync", full_disk)
        ol.save(path, {"x": torch.ones(1000)})
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with new_file(path, "w") as file:
        file.write("whole")
        assert path.read_text() == "before"
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def full_disk(*_: object) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize("link", [False, True], ids=["itself", "through a link"])
def test_a_pipe_is_not_replaced(link: bool, tmp_path: Path) -> None:
    """Nor is a device: as root, that would remove it for the whole machine."""
    path = target = tmp_path / "pipe"
    os.mkfifo(path)
    if link:
        target = tmp_path / "link"
        target.symlink_to(path)
    with pytest.raises(OSError, match="device or a pipe") as caught:
        ol.save(target, {"x": torch.ones(1)})
    assert caught.value.filename == str(target) and path.is_fifo()
    assert len(list(tmp_path.iterdir())) == 1 + link


def test_a_link_stays_and_the_file_it_names_is_replaced(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "elsewhere" / "file"
    file.parent.mkdir()
    link.symlink_to(file)
    for number in (1, 2):
        ol.save(link, {"x": number})
        assert link.is_symlink() and not file.is_symlink()
        assert ol.load(file) == {"x": number}
    assert list(file.parent.iterdir()) == [file]


def test_files_need_no_locks(tmp_path: Path) -> None:
    """As on Windows, which has no fcntl."""
    code = (
        "import sys; sys.modules['fcntl'] = None; import torch, orderless as ol;"
        "ol.save('a', {'x': torch.ones(2)}); print(ol.load('a')['x'].sum().item());"
        "ol.features.Backbone; ol.Head; ol.distributed"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout == "2.0\n", result.stderr


def test_a_digest_is_of_the_values_alone() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    value = {"x": x, "rest": [1, "two", (None, 0.5)]}
    assert digest(value) == digest({**value, "x": x.T.contiguous().T})
    others = [
        {**value, "x": x.double()},
        {**value, "x": x.reshape(3, 2)},
        {**value, "x": x + torch.tensor([0.0, 0.0, 2.0**-20])},
        {**value, "rest": [1, "two", [None, 0.5]]},
        {**value, "rest": ["1", "two", (None, 0.5)]},
        {"y": x, "rest": value["rest"]},
    ]
    assert len({digest(other) for other in [value, *others]}) == 7
