"""`save` and `load`: whole or not at all, and what is loaded goes on as what was saved."""

import copy
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless.io import digest, new_file

cross_entropy = ol.per_particle(F.cross_entropy)


def network(width: int = 8) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3))
    )


def adam(particles: ol.Ensemble) -> torch.optim.Optimizer:
    return torch.optim.Adam(particles.parameters(), lr=0.01)


FILTERS = {
    "weighted": lambda p: ol.WeightedParticleFilter(p, adam(p)),
    "weighted sgd": lambda p: ol.WeightedParticleFilter(
        p, torch.optim.SGD(p.parameters(), lr=0.1), min_ess=2
    ),
    "linearized": lambda p: ol.WeightedParticleFilter(
        p, torch.optim.SGD(p.parameters(), lr=0.1, momentum=0.9), weighting="linearized"
    ),
    "averaging": lambda p: ol.AveragingParticles(p, adam(p)),
    "descent": lambda p: ol.GradientDescent(p, adam(p)),
    "sir": lambda p: ol.BootstrapParticleFilter(p, perturbation=0.1, variant="sir"),
    "paper": lambda p: ol.BootstrapParticleFilter(p, perturbation=ol.Perturb(0.0, 0.1)),
}


def make(name: str, seed: int = 0, n: int = 4, width: int = 8) -> ol.ParticleFilter:
    particles = ol.Ensemble(lambda: network(width), 1 if name == "descent" else n, seed=seed)
    return FILTERS[name](particles)


def train(pf: ol.ParticleFilter, start: int, steps: int) -> None:
    for number in range(start, start + steps):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(5, 4, generator=generator)
        y = torch.randint(0, 3, (5,), generator=generator)
        pf.step(lambda x=x, y=y: cross_entropy(pf.particles(x), y))


def flat(value: object, name: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {k: v for key in value for k, v in flat(value[key], f"{name}/{key}").items()}
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
        return {k: v for i, item in items for k, v in flat(item, f"{name}/{i}").items()}
    return {name: value}


def assert_same(left: object, right: object) -> None:
    left, right = flat(left), flat(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, Tensor):
            assert value.dtype == right[name].dtype, name
            assert torch.equal(value, right[name]), name
        else:
            assert value == right[name], name


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("seed", [0, 1], ids=["same seed", "other seed"])
def test_a_loaded_filter_goes_on_bit_for_bit(name: str, seed: int, tmp_path: Path) -> None:
    """Into a fresh filter, even one that started from another seed."""
    uninterrupted = make(name)
    train(uninterrupted, 0, 3)
    path = ol.save(tmp_path / "filter.safetensors", uninterrupted)
    train(uninterrupted, 3, 3)

    resumed = ol.load(path, into=make(name, seed=seed))
    train(resumed, 3, 3)
    assert_same(resumed.state_dict(), uninterrupted.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(resumed.predict(x), uninterrupted.predict(x))
    assert torch.equal(resumed.log_evidence, uninterrupted.log_evidence)


@pytest.mark.parametrize("name", ["weighted", "weighted sgd", "linearized", "averaging"])
def test_what_was_saved_on_a_gpu_goes_on_without_one(name: str) -> None:
    """There a recorded step has changed how the optimizer works."""
    uninterrupted, resumed = make(name), make(name)
    train(uninterrupted, 0, 3)
    state = copy.deepcopy(uninterrupted.state_dict())
    for group in state["optimizer"]["param_groups"]:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
        recorded = {"capturable": True} if "capturable" in group else {"fused": True}
        group.update(recorded)
    resumed.load_state_dict(state)
    for pf in (uninterrupted, resumed):
        train(pf, 3, 3)
    # torch's fused kernel rounds otherwise
    torch.testing.assert_close(resumed.log_weights, uninterrupted.log_weights, rtol=0, atol=1e-5)


def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    pf = make("weighted")
    train(pf, 0, 2)
    assert_same(ol.load(ol.save(tmp_path / "a", pf)), pf.state_dict())


def test_saving_does_not_disturb(tmp_path: Path) -> None:
    saved, unsaved = make("weighted"), make("weighted")
    for pf in (saved, unsaved):
        train(pf, 0, 2)
        if pf is saved:
            ol.save(tmp_path / "a", pf)
        train(pf, 2, 2)
    assert_same(saved.state_dict(), unsaved.state_dict())


def test_an_ensemble_can_be_saved_by_itself(tmp_path: Path) -> None:
    particles, other = ol.Ensemble(network, 3, seed=0), ol.Ensemble(network, 3, seed=1)
    ol.load(ol.save(tmp_path / "a", particles), into=other)
    assert_same(dict(other.state_dict()), dict(particles.state_dict()))


def refused(pf: ol.ParticleFilter, path: Path, message: str) -> None:
    before = copy.deepcopy(pf.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        ol.load(path, into=pf)
    assert str(path) in str(caught.value)
    assert_same(pf.state_dict(), before)


def test_the_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = ol.save(tmp_path / "a", make("weighted", seed=1, width=8))
    refused(make("weighted", width=9), path, r"'0.weight' is \(4, 8, 4\) there and \(4, 9, 4\)")
    other = ol.Ensemble(lambda: nn.Linear(4, 3), 4)
    refused(ol.WeightedParticleFilter(other, adam(other)), path, "not in both")


def test_the_file_of_another_n_is_refused(tmp_path: Path) -> None:
    path = ol.save(tmp_path / "a", make("weighted", seed=1, n=5))
    refused(make("weighted", n=4), path, r"\(5, 8, 4\) there and \(4, 8, 4\) here")


def test_the_file_of_another_filter_is_refused(tmp_path: Path) -> None:
    path = ol.save(tmp_path / "a", make("averaging", seed=1))
    refused(make("weighted"), path, "of a AveragingParticles, not of a WeightedParticleFilter")
    refused(make("sir"), path, "of a AveragingParticles, not of a BootstrapParticleFilter")


def test_the_file_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    path = ol.save(tmp_path / "a", make("weighted", seed=1))
    refused(make("weighted sgd"), path, "another optimizer than SGD")


def test_the_file_of_a_bare_ensemble_is_refused(tmp_path: Path) -> None:
    path = ol.save(tmp_path / "a", ol.Ensemble(network, 4, seed=1))
    refused(make("weighted"), path, "not the state of a WeightedParticleFilter")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = ol.save(tmp_path / "a", make("weighted", seed=1))
    whole = path.read_bytes()
    for size in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(make("weighted"), path, "not a whole safetensors file")


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    """In the sizes, the names, the values or the checksum itself."""
    path = ol.save(tmp_path / "a", {"x": torch.arange(4.0), "n": [1, "two", (3.5, None)]})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(ValueError, match=str(path)):
            ol.load(path)
    path.write_bytes(whole)
    ol.load(path)


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    state = make("weighted").state_dict()
    first, second = (ol.save(tmp_path / name, state) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_file_of_another_version_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("orderless.io.FORMAT", 99)
    path = ol.save(tmp_path / "a", make("weighted"))
    monkeypatch.undo()
    refused(make("weighted"), path, "its format is 99, and this version reads 2")


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "executed"),)

    (tmp_path / "a").write_bytes(pickle.dumps(Harmful()))
    refused(make("weighted"), tmp_path / "a", "not a whole safetensors file")
    torch.save(make("weighted").state_dict(), tmp_path / "b")
    refused(make("weighted"), tmp_path / "b", "not a whole safetensors file")
    assert not (tmp_path / "executed").exists()


def test_another_programs_safetensors_file_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "a")
    refused(make("weighted"), tmp_path / "a", "not written by orderless.save")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ol.load(tmp_path / "nothing")


def test_a_place_without_a_file_is_named_as_it_was_given(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "a", tmp_path):
        with pytest.raises(OSError) as caught:
            ol.save(path, {"x": 1})
        assert caught.value.filename == str(path)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ol.load(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch) -> None:
    path = ol.save(tmp_path / "a", {"x": torch.zeros(3)})
    old = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        ol.save(path, {"x": torch.ones(1000)})
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_partly_written_file_never_has_the_final_name(tmp_path: Path, monkeypatch) -> None:
    path, seen = tmp_path / "a", []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        seen.append([p.name for p in tmp_path.iterdir()])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    ol.save(path, {"x": torch.zeros(3)})
    assert seen
    assert all("a" not in names for names in seen)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_nested_plain_values_and_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "floats": [0.1, float("inf"), -float("inf"), 1e-320, -0.0],
        "others": (None, True, 3, "ö/$tensor", ()),
        3: {"lr": 0.1, "betas": (0.9, 0.999), "empty": {}, "list": []},
        "$tensor": "a name that looks like a tag",
        "scalars": torch.tensor(2.5, dtype=torch.float64),
        "bits": torch.tensor([True, False]),
        "half": torch.arange(4).to(torch.bfloat16),
        "strided": torch.arange(6).view(2, 3).T,
    }
    loaded = ol.load(ol.save(tmp_path / "a", state))
    assert list(loaded) == list(state)
    assert loaded["others"] == state["others"]
    assert_same(loaded, state)
    nan = ol.load(ol.save(tmp_path / "b", {"x": float("nan")}))["x"]
    assert nan != nan


def test_names_that_look_alike_stay_apart(tmp_path: Path) -> None:
    state = {
        **{"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}},
        **{"0": torch.tensor(3), 0: torch.tensor(4)},
    }
    assert_same(
        [ol.load(ol.save(tmp_path / "x", state))[key] for key in state], list(state.values())
    )


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    x = torch.arange(6)
    assert_same(ol.load(ol.save(tmp_path / "a", {"x": x, "y": x[2:]})), {"x": x, "y": x[2:]})


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'?/model/f'?: a function"):
        ol.save(tmp_path / "a", {"model": {"f": lambda: 0}})
    assert list(tmp_path.iterdir()) == []


def test_complex_numbers_come_back_and_sparse_ones_are_refused_by_name(tmp_path: Path) -> None:
    for dtype in (torch.complex64, torch.complex128):
        state = {"c": torch.tensor([1 + 2j, -0.5j], dtype=dtype).conj()}
        loaded = ol.load(ol.save(tmp_path / "a", state))
        assert loaded["c"].dtype == dtype and torch.equal(loaded["c"], state["c"])
    with pytest.raises(TypeError, match="/s: a tensor is sparse_coo"):
        ol.save(tmp_path / "b", {"s": torch.eye(3).to_sparse()})
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("link", [False, True], ids=["itself", "through a link"])
def test_a_pipe_is_not_replaced(link: bool, tmp_path: Path) -> None:
    """Nor is a device: as root, that would remove it for the whole machine."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    target = path
    if link:
        target = tmp_path / "link"
        target.symlink_to(path)
    with pytest.raises(OSError, match="device or a pipe") as caught:
        ol.save(target, {"x": torch.ones(1)})
    assert caught.value.filename == str(target)
    assert stat.S_ISFIFO(os.stat(target).st_mode) and target.is_symlink() == link
    assert len(list(tmp_path.iterdir())) == 1 + link


def test_a_new_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), new_file(path, "w") as file:
        file.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with new_file(path, "w") as file:
        file.write("whole")
        assert path.read_text() == "before"
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_files_need_no_locks(tmp_path: Path) -> None:
    """As on Windows, which has no fcntl."""
    code = (
        "import sys; sys.modules['fcntl'] = None; import torch, orderless as ol;"
        "ol.save('a', {'x': torch.ones(2)}); print(ol.load('a')['x'].sum().item());"
        "ol.features.Backbone; ol.features.efficientnet_lite"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout == "2.0\n", result.stderr


def test_a_digest_is_of_the_values_alone() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    value = {"x": x, "rest": [1, "two", (None, 0.5)]}
    strided = {"x": x.T.contiguous().T, "rest": [1, "two", (None, 0.5)]}
    assert digest(value) == digest(strided)
    others = [
        {**value, "x": x.double()},
        {**value, "x": x.reshape(3, 2)},
        {**value, "x": x + torch.tensor([0.0, 0.0, 2.0**-20])},
        {**value, "rest": [1, "two", [None, 0.5]]},
        {**value, "rest": ["1", "two", (None, 0.5)]},
        {"y": x, "rest": value["rest"]},
    ]
    assert len({digest(other) for other in [value, *others]}) == 7
