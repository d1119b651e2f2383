"""`orderless verify-deletion`: equal digests for equal data."""

import json

import pytest
import torch
from typer.testing import CliRunner

import orderless as ol
from orderless.cli.main import app

X = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] * X[:, 1] > 0).long()


def fed(path, rows, forgotten=None, *, y=Y, seed=0):
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(5, 16), n=2, seed=seed)
    rb = ol.ExactHead(maps)
    rb.update(X[rows], y[rows])
    if forgotten is not None:
        rb.forget(X[forgotten], y[forgotten])
    return str(ol.save(path, rb))


def verify(*words):
    return CliRunner().invoke(app, ["verify-deletion", *words])


def test_after_deletion_every_digest_is_that_of_a_head_without_the_data(tmp_path):
    after = fed(tmp_path / "a.st", slice(0, 300), slice(200, 300))
    without = fed(tmp_path / "b.st", slice(0, 200))
    result = verify(after, without)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("hold the same data\n")
    assert "is not" not in result.output
    found = json.loads(verify(after, without, "--json").output)
    assert found["equal"] and all(line["equal"] for line in found["compared"])
    names = [line["name"] for line in found["compared"]]
    assert {"maps", "samples", "gram", "moments", "squares", "kept samples"} <= set(names)


@pytest.mark.parametrize(
    ("rows", "options", "differs"),
    [
        (slice(0, 199), {}, "samples, gram, moments, squares"),
        (slice(1, 201), {}, "gram, moments"),
        (slice(0, 200), {"y": 1 - Y}, "moments, squares"),
        (slice(0, 200), {"seed": 1}, "kind of maps and grid, maps"),
        (slice(0, 200), {"y": Y + 1}, "columns"),
    ],
)
def test_what_differs_is_named(rows, options, differs, tmp_path):
    after = fed(tmp_path / "a.st", slice(0, 300), slice(200, 300))
    result = verify(after, fed(tmp_path / "b.st", rows, **options))
    assert result.exit_code == 1 and differs in result.output.splitlines()[-1], result.output


def test_a_sample_that_is_still_kept_is_found(tmp_path):
    without = fed(tmp_path / "a.st", slice(0, 200))
    state, more = ol.load(without), ol.load(fed(tmp_path / "b.st", slice(0, 300)))
    kept = more["sums"]["kept"]
    assert len(kept["keys"]) > len(state["sums"]["kept"]["keys"])
    state["sums"]["kept"] = kept
    result = verify(str(ol.save(tmp_path / "c.st", state)), without)
    assert result.exit_code == 1 and result.output.endswith("differ in kept samples\n")


def test_an_estimator_is_compared_with_its_classes_and_scales(tmp_path):
    pytest.importorskip("sklearn")
    names, X64 = torch.tensor([3, 7])[Y].numpy(), X.double().numpy()
    a, b, c = (
        ol.ParticleClassifier(n_features=16, random_state=0, input_scale=s) for s in (1, 1, 2)
    )
    a.fit(X64, names).forget(X64[200:], names[200:])
    ol.save(tmp_path / "a.st", a)
    ol.save(tmp_path / "b.st", b.fit(X64[:200], names[:200]))
    ol.save(tmp_path / "c.st", c.fit(X64[:200], names[:200]))
    assert verify(str(tmp_path / "a.st"), str(tmp_path / "b.st")).exit_code == 0
    result = verify(str(tmp_path / "a.st"), str(tmp_path / "c.st"))
    assert result.exit_code == 1 and "differ in classes and scales, " in result.output


def test_other_files_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "no").write_text("x")
    ol.save(tmp_path / "plain.st", {"a": torch.zeros(2)})
    odd = {"fingerprint": 1, "sums": 5, "particles": 1, "targets": 2}
    ol.save(tmp_path / "odd.st", odd)
    for name, said in (
        ("no", "is not a whole"),
        ("plain.st", "no saved exact head"),
        ("odd.st", ""),
    ):
        result = verify(str(tmp_path / name), str(tmp_path / name))
        assert result.exit_code == 2 and said in result.stderr, result.output
        assert result.stderr.count("\n") == 1
