"""The learners beside the exact head, against closed forms."""

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture
def data():
    torch.manual_seed(0)
    means = 2 * torch.randn(3, 6)
    y = torch.arange(300) % 3
    return means[y] + torch.randn(300, 6), y


@pytest.mark.parametrize("name", ["ACIL", "GACL"])
def test_recursions_end_at_the_ridge_solution_of_all_data(study, data, name):
    x, y = data
    learner = study.METHODS[name](study.Size(6, 3, 40))
    for label in range(3):
        learner.learn(x[y == label], y[y == label])
    phi = learner.map(x).double()
    gram = phi.T @ phi + learner.gamma * torch.eye(40).double()
    expected = torch.linalg.solve(gram, phi.T @ F.one_hot(y, 3).double())
    torch.testing.assert_close(learner.weight, expected, rtol=1e-6, atol=1e-9)


def test_the_mended_slda_has_the_covariance_of_all_data(study, data):
    x, y = data
    learner = study.METHODS["CapyMOA SLDA mended"](study.Size(6, 3, 0))
    learner.learn(x, y)
    torch.testing.assert_close(learner.covariance, x.T.cov(correction=0), rtol=1e-4, atol=1e-5)
    assert (learner.scores(x).argmax(1) == y).double().mean() > 0.95


def test_anacp_learns_three_classes_one_after_another(study, data):
    x, y = data
    learner = study.METHODS["AnaCP"](study.Size(6, 3, 40))
    for label in (2, 0, 1):
        learner.learn(x[y == label], y[y == label])
    assert (learner.scores(x).argmax(1) == y).double().mean() > 0.9
