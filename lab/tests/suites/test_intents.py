"""Intents: files of known editions, sentences as features, computed once."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from orderless.features.published import Sentences
from orderless_lab.datasets import DataError, check, load_intents
from orderless_lab.datasets import texts as files
from orderless_lab.datasets.catalogue import INTENTS_MD5S
from orderless_lab.suites import Intents


class CountingWords(nn.Module):
    """Which tokens a sentence has, as 8 numbers; and how many sentences were looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.looked_at += len(tokens)
        return torch.stack([(tokens % 8 == k).float().mean(1) for k in range(8)], 1)


class Letters(Sentences):
    """Letters for tokens: no vocabulary is needed."""

    def tokenize(self, texts: list[str]) -> Tensor:  # type: ignore[override]
        tokens = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = torch.tensor([ord(letter) for letter in text])
        return tokens


@pytest.fixture
def encoder() -> Letters:
    return Letters(CountingWords(), Path("vocab.txt"), scale=1.0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """77 intents, three sentences each to learn and one to be tested on; and a cache of its own."""
    folder = tmp_path / "data" / "intents"
    folder.mkdir(parents=True)
    md5s = {}
    for name in INTENTS_MD5S:
        with (folder / name).open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("text", "label"))
            for intent in range(77):
                for number in range(3 if "train" in name else 1):
                    writer.writerow((f"{chr(300 + intent) * 4}{number}", f"intent {intent:02d}"))
        md5s[name] = (hashlib.md5((folder / name).read_bytes()).hexdigest(), "")
    monkeypatch.setattr(files, "INTENTS_MD5S", md5s)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def test_seven_tasks_of_eleven_intents_in_the_order_of_their_names(
    root: Path, encoder: Letters
) -> None:
    scenario = Intents(root=root, encoder=encoder)
    assert (len(scenario), scenario.classes_per_task, scenario.outputs) == (7, 11, 77)
    assert scenario.kind == "class" and scenario.input_shape == (8,)
    assert scenario.task_names[1] == "intent 11 ... intent 21"
    texts = [f"{chr(300 + 11) * 4}0"]
    assert torch.equal(scenario.tasks[1].x[:1], encoder(encoder.tokenize(texts)))
    assert scenario.tasks[1].y[:6].tolist() == [0, 0, 0, 1, 1, 1]


def test_sentences_are_embedded_once(root: Path, encoder: Letters) -> None:
    first = Intents(root=root, encoder=encoder)
    counted = encoder._frozen.original
    before = counted.looked_at
    assert before > 0
    again = Intents(root=root, encoder=encoder)
    assert counted.looked_at == before
    assert all(torch.equal(a.x, b.x) for a, b in zip(first.tasks, again.tasks, strict=True))


def test_a_damaged_cache_is_computed_again(root: Path, encoder: Letters, tmp_path: Path) -> None:
    first = Intents(root=root, encoder=encoder)
    for file in (tmp_path / "cache").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    again = Intents(root=root, encoder=encoder)
    assert torch.equal(first.tasks[3].x, again.tasks[3].x)


def test_files_of_no_known_edition_are_refused(root: Path) -> None:
    assert len(load_intents("banking77", root)[0].texts) == 231
    assert all(entry.ok for entry in check("intents", root))
    with (root / "intents" / "banking_train.csv").open("a") as stream:
        stream.write("what now?,intent 00\n")
    with pytest.raises(DataError, match="no known edition"):
        load_intents("banking77", root)
    assert [entry.ok for entry in check("intents", root)] == [False, True, True, True]
    with pytest.raises(ValueError, match="banking77 or clinc150, got 'clinc'"):
        load_intents("clinc", root)  # type: ignore[arg-type]


def test_the_official_files_become_csv(tmp_path: Path) -> None:
    banking = tmp_path / "banking_test.csv.original"
    banking.write_text('text,category\n"Where, please,\nis it?",card_arrival\n')
    files.write_converted(banking, tmp_path)
    clinc = tmp_path / "clinc.json.original"
    parts = {"train": [["a", "x"]], "test": [["b, c", "y"]], "oos_train": [["d", "oos"]]}
    clinc.write_text(json.dumps(parts))
    files.write_converted(clinc, tmp_path)
    found = {}
    for path in sorted(tmp_path.glob("*.csv")):
        with path.open(newline="") as stream:
            found[path.name] = list(csv.reader(stream))[1:]
    assert found == {
        "banking_test.csv": [["Where, please,\nis it?", "card_arrival"]],
        "clinc_test.csv": [["b, c", "y"]],
        "clinc_train.csv": [["a", "x"]],
    }
