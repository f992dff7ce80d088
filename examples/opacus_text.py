"""Text classification with a Transformer in a loop written for Opacus: the last layers of a BERT are fine-tuned.

    python examples/opacus_text.py                                         # sentences made by a grammar
    python examples/opacus_text.py --data train.tsv.gz --records 67000     # SST-2: columns sentence and label
    python examples/opacus_text.py --pretrained path/to/bert --data train.tsv.gz

Needs ``transformers``. The weights are random, unless ``--pretrained`` names a folder.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from noisette.integrations.opacus import PrivacyEngine

LENGTH = 32  # every sentence is cut or padded to it, so that none sees the length of another one
WORDS = 2000  # word ids are hashes: a vocabulary made from the records would be private


def encoded(sentence: str, label: int) -> dict[str, Any]:
    """The arguments of the model for one sentence."""
    ids = [4 + zlib.crc32(word.encode()) % (WORDS - 4) for word in sentence.lower().split()][:LENGTH]
    padding = LENGTH - len(ids)
    return {
        "input_ids": torch.tensor(ids + [0] * padding),
        "attention_mask": torch.tensor([1] * len(ids) + [0] * padding),
        "labels": torch.tensor(label),
    }


def sentences(path: Path | None, most: int) -> list[tuple[str, int]]:
    """Sentences with their labels, 0 or 1: of a file, or made by a grammar."""
    if path is None:
        chosen = random.Random(0)
        words = {0: ("dull", "weak", "tired"), 1: ("fine", "moving", "funny")}
        labels = [chosen.randrange(2) for _ in range(most)]
        return [(f"a {chosen.choice(words[label])} film about the sea", label) for label in labels]
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"], int(row["label"])) for _, row in zip(range(most), rows, strict=False)]


def bert(folder: str | None) -> Any:
    """A BERT with two classes, from a folder or with random weights."""
    if folder is not None:
        return BertForSequenceClassification.from_pretrained(folder)
    sizes: dict[str, int] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_attention_heads=2, **sizes))


def main() -> None:
    """Train within the budget, and print the cost after each epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pretrained")
    parser.add_argument("--records", type=int, default=512, help="declared number of records")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = bert(options.pretrained)
    if options.pretrained:
        for name, p in model.named_parameters():
            p.requires_grad_(name.startswith(("bert.encoder.layer.11", "bert.pooler", "classifier")))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    records = [encoded(*row) for row in sentences(options.data, options.records)]
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(records, batch_size=options.batch),  # pyright: ignore[reportArgumentType]
        target_epsilon=options.epsilon,
        target_delta=options.delta,
        epochs=options.epochs,
        max_grad_norm=1.0,
        public_size=options.records,
    )
    for epoch in range(options.epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: epsilon {engine.get_epsilon(options.delta):.2f}")


if __name__ == "__main__":
    main()
