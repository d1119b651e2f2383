"""`orderless verify-deletion`: equal digests for equal data."""

import json

import pytest
import torch
from tests.cli.commands import refused, run

import orderless as ol

X = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] * X[:, 1] > 0).long()


def fed(path, rows, forgotten=None, *, y=Y, seed=0):
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(5, 16), n=2, seed=seed)
    head = ol.ExactHead(maps)
    head.update(X[rows], y[rows])
    if forgotten is not None:
        head.forget(X[forgotten], y[forgotten])
    return ol.save(path, head)


def test_after_deletion_every_digest_is_that_of_a_head_without_the_data(tmp_path):
    after = fed(tmp_path / "a.st", slice(0, 300), slice(200, 300))
    without = fed(tmp_path / "b.st", slice(0, 200))
    assert run("verify-deletion", after, without).output.endswith("hold the same data\n")
    found = json.loads(run("verify-deletion", after, without, "--json").output)
    assert found["equal"] and not found["different"]
    names = [line["name"] for line in found["compared"]]
    assert {"maps", "samples", "gram", "moments", "squares", "kept"} <= set(names)


@pytest.mark.parametrize(
    ("rows", "options", "differs"),
    [
        (slice(0, 199), {}, "samples, gram, moments, squares"),
        (slice(1, 201), {}, "gram, moments"),
        (slice(0, 200), {"seed": 1}, "kind of maps and grid, maps"),
        (slice(0, 200), {"y": Y + 1}, "columns"),
    ],
)
def test_what_differs_is_named(rows, options, differs, tmp_path):
    without = fed(tmp_path / "a.st", slice(0, 200))
    other = fed(tmp_path / "b.st", rows, **options)
    assert differs in run("verify-deletion", without, other, code=1).output.splitlines()[-1]


def test_a_head_may_have_what_the_other_has_not(tmp_path):
    heads = {name: ol.ExactHead("linear", ledger=name == "ledger") for name in ("ledger", "plain")}
    for head in heads.values():
        head.update(X, Y)
    heads["empty"] = ol.ExactHead("linear")
    paths = {name: ol.save(tmp_path / name, head) for name, head in heads.items()}
    for first, second, differs in (
        ("ledger", "plain", "ledger"),
        ("plain", "ledger", "ledger"),
        ("plain", "empty", "kept"),
        ("empty", "plain", "kept"),
    ):
        said = run("verify-deletion", paths[first], paths[second], code=1).output
        assert said.splitlines()[-1].endswith(f", {differs}")


def test_a_sample_that_is_still_kept_is_found(tmp_path):
    without = fed(tmp_path / "a.st", slice(0, 200))
    state, more = ol.load(without), ol.load(fed(tmp_path / "b.st", slice(0, 300)))
    state["sums"]["kept"] = more["sums"]["kept"]
    changed = ol.save(tmp_path / "c.st", state)
    assert run("verify-deletion", changed, without, code=1).output.endswith("differ in kept\n")


def test_an_estimator_is_compared_with_its_classes_and_scales(tmp_path):
    pytest.importorskip("sklearn")
    names, X64 = torch.tensor([3, 7])[Y].numpy(), X.double().numpy()
    a, b, c = (ol.ExactClassifier(n_features=16, random_state=0, input_scale=s) for s in (1, 1, 2))
    a.fit(X64, names).forget(X64[200:], names[200:])
    first = ol.save(tmp_path / "a.st", a)
    same = ol.save(tmp_path / "b.st", b.fit(X64[:200], names[:200]))
    other = ol.save(tmp_path / "c.st", c.fit(X64[:200], names[:200]))
    run("verify-deletion", first, same)
    said = run("verify-deletion", first, other, code=1).output
    assert "differ in classes and scales, " in said


def test_other_files_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "no").write_text("x")
    plain = ol.save(tmp_path / "plain.st", {"a": torch.zeros(2)})
    odd = ol.save(tmp_path / "odd.st", {"basis": 1, "sums": 5, "particles": 1, "targets": 2})
    assert "is damaged or not written by" in refused("verify-deletion", tmp_path / "no", plain)
    assert "no saved exact head" in refused("verify-deletion", plain, plain)
    assert "cannot be compared" in refused("verify-deletion", odd, odd)
