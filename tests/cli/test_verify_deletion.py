"""`orderless verify-deletion`: a certificate for what is equal, the difference for what is not."""

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
    rb = ol.RaoBlackwellizedFilter(maps)
    rb.update(X[rows], y[rows])
    if forgotten is not None:
        rb.forget(X[forgotten], y[forgotten])
    return str(ol.save(path, rb))


def verify(*words):
    return CliRunner().invoke(app, ["verify-deletion", *words])


def test_after_deletion_every_difference_is_exactly_zero(tmp_path):
    after = fed(tmp_path / "a.st", slice(0, 300), slice(200, 300))
    without = fed(tmp_path / "b.st", slice(0, 200))
    result = verify(after, without)
    assert result.exit_code == 0, result.output
    assert "hold the same data: all differences are exactly 0" in result.output
    assert result.output.count("difference exactly 0") == 4  # three sums and the evidence
    found = json.loads(verify(after, without, "--json").output)
    assert found["equal"] and all(line["equal"] for line in found["compared"])
    names = [line["name"] for line in found["compared"]]
    assert {"maps", "samples", "gram", "moments", "squares", "maximal log evidence"} <= set(names)


@pytest.mark.parametrize(
    ("rows", "options", "differs"),
    [
        (slice(0, 199), {}, "samples, gram, moments, squares, maximal log evidence"),
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
    kept = {name: each for name, each in more["statistics"].items() if name.startswith("kept_")}
    assert len(kept["kept_keys"]) > len(state["statistics"]["kept_keys"])
    state["statistics"] |= kept
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
    odd = {"fingerprint": 1, "statistics": 5, "particles": 1, "targets": 2}
    ol.save(tmp_path / "odd.st", odd)
    for name, said in (
        ("no", "is not a whole"),
        ("plain.st", "no saved exact filter"),
        ("odd.st", ""),
    ):
        result = verify(str(tmp_path / name), str(tmp_path / name))
        assert result.exit_code == 2 and said in result.stderr, result.output
        assert result.stderr.count("\n") == 1
