"""The code on the pages about other libraries runs."""

import csv
import gzip
import os
import re
import runpy
import sys
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from page_code import ROOT, blocks, names_of


def reviews(most: int = 200) -> list[dict[str, Any]]:
    """Sentences of SST-2, with hashes of words as tokens."""
    path = Path(os.environ.get("NOISETTE_DATA", "-"), "sst2", "train.tsv.gz")
    if not path.is_file():
        pytest.skip("SST-2 is not there: set NOISETTE_DATA to the folder of the data sets")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        texts = [(row["sentence"].split(), int(row["label"])) for row in islice(rows, most)]
    return [
        {"input_ids": [4 + crc32(word.encode()) % 1996 for word in words], "label": label} for words, label in texts
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_trainer_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = names_of(*blocks("docs/how-to/hugging-face-trainer.md"), given={"records": reviews()})
    assert found["done"].metrics["epsilon"] <= 8
    assert (tmp_path / "runs" / "reviews" / "checkpoint-30" / "private-run").is_dir()


@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_lightning_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = names_of(*blocks("docs/how-to/lightning.md"))
    first, *_ = tmp_path.rglob("ledger.jsonl")
    assert first.parent.name == "version_0"
    metrics = found["trainer"].callback_metrics
    assert found["best"].best_model_score > 0.75
    assert type(found["public"]) is found["Digits"]
    assert not metrics or float(metrics["epsilon"]) <= 3


def test_opacus_page():
    assert 2.5 < names_of(*blocks("docs/how-to/from-opacus.md"))["engine"].get_epsilon(1e-4) <= 3


@pytest.mark.parametrize("words", ["opacus_images.py --batch 300", "opacus_text.py --records 64 --batch 16"])
def test_ported_tutorials(words, monkeypatch, capsys):
    script, *arguments = [*words.split(), "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    said = re.search(r"epoch 1: .*epsilon (\d\.\d\d)$", capsys.readouterr().out.strip())
    assert said
    assert 7 < float(said[1]) <= 8
