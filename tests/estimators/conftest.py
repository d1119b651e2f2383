"""Data that estimators learn in several files."""

import pytest
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler


@pytest.fixture(scope="session")
def iris():
    data = load_iris()
    X = StandardScaler().fit_transform(data.data)
    return X, data.target_names[data.target]
