"""Learners without an order: what the study says of the exact head, on scikit-learn's digits."""

import torch


def test_the_exact_head_alone_has_the_same_bits_in_all_orders(study):
    train, test = study.load("digits", 0)
    x, y = (torch.cat([part[k] for part in test]) for k in (0, 1))
    size = study.Size(64, 10, 100)
    rows = {
        name: study.measured(name, size, train, x, y) for name in ("RanPAC", "ACIL", "exact head")
    }
    assert [name for name, row in rows.items() if row["equal_bits"]] == ["exact head"]
    assert rows["exact head"]["flipped"] == 0
    assert all(row["accuracy"] > 90 for row in rows.values())
