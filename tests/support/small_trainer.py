"""Texts, a model and arguments for a ``PrivateTrainer`` that trains in seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from noisette.integrations.transformers import PrivateTrainingArguments

LENGTHS = (3, 9, 5, 2, 8, 4, 7, 6)


def records(lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    drawn = torch.Generator().manual_seed(0)
    return [
        {"input_ids": torch.randint(5, 40, (n,), generator=drawn).tolist(), "label": k % 2}
        for k, n in enumerate(lengths)
    ]


def config(dropout: float = 0.0, **changed: Any) -> BertConfig:
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    return BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **changed)


def model(dropout: float = 0.0) -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(config(dropout))


def arguments(folder: Path, **changed: Any) -> PrivateTrainingArguments:
    """Of eight steps on eight records, of which a batch has two on average."""
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "epsilon": 8.0,
        "delta": 1e-3,
        "public_size": 8,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "bucket_edges": (4, 8, 16),
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 2,
    }
    return PrivateTrainingArguments(**given | changed)
