"""Which fields of a record are padded: decided by names and by the kind of model, never by lengths that are met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate, which is not installed")

from transformers import default_data_collator  # noqa: E402

from noisette.integrations.transformers import Padding, PrivateTrainer  # noqa: E402
from noisette.run.loading import records_of  # noqa: E402
from small_trainer import arguments, config, model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


PADDING = Padding((4, 8), 0, model(), {})


def padded(records: Any, of: Any = None, **fields: float) -> Any:
    return Padding((4, 8), 0, of or model(), fields).bucketed(records, default_data_collator)


def test_a_field_that_is_as_long_as_the_first_text_by_chance_is_left_alone() -> None:
    one = {"input_ids": [1, 2, 3], "pixel_values": torch.ones(3, 4, 4), "features": [0.1, 0.2, 0.3]}
    found = padded([one, {**one, "input_ids": [1, 2, 3, 4, 5]}])
    assert found[0]["input_ids"].tolist() == [1, 2, 3, 0]
    assert found[0]["attention_mask"].tolist() == [1, 1, 1, 0]
    assert found[0]["pixel_values"].shape == (3, 4, 4)
    assert len(found[0]["features"]) == len(found[1]["features"]) == 3
    assert len(found[1]["input_ids"]) == 8


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForTokenClassification"])
def test_labels_of_tokens_are_padded(kind: str) -> None:
    own = type("Own", (getattr(transformers, kind),), {})(config())
    records = [{"input_ids": [1] * n, "labels": [2] * n, "special_tokens_mask": [0] * n} for n in (1, 3, 5)]
    found = padded(records, own)
    assert [len(found[k]["labels"]) for k in range(3)] == [4, 4, 8]
    assert found[1]["labels"].tolist() == [2, 2, 2, -100]
    assert found[1]["special_tokens_mask"].tolist() == [0, 0, 0, 1]


def test_further_fields_are_declared() -> None:
    records = [{"input_ids": [1, 2], "tags": [1, 1], "label": 0}, {"input_ids": [1] * 5, "tags": [1] * 5, "label": 1}]
    assert padded(records, tags=-1)[0]["tags"].tolist() == [1, 1, -1, -1]
    assert padded(records)[0]["tags"].tolist() == [1, 1]


def seq2seq() -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "d_ff": 8, "d_kv": 4, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
    config = transformers.T5Config(dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


TRANSLATIONS = [{"input_ids": [5 + k] * (2 + k), "labels": [6 + k] * (10 - k)} for k in range(8)]


def test_translations_have_a_bucket_for_source_and_target(tmp_path: Path) -> None:
    translator = seq2seq()
    found = padded(TRANSLATIONS, translator)
    assert [(len(found[k]["input_ids"]), len(found[k]["labels"])) for k in (0, 3, 7)] == [(4, 8), (8, 8), (8, 4)]
    assert len({found.buckets[k] for k in (0, 3, 7)}) == 3
    alone = translator(
        input_ids=torch.tensor([TRANSLATIONS[6]["input_ids"]]), labels=torch.tensor([TRANSLATIONS[6]["labels"]])
    )
    filled = translator(**{name: value.unsqueeze(0) for name, value in found[6].items()})
    torch.testing.assert_close(filled.loss, alone.loss)
    trainer = PrivateTrainer(translator, arguments(tmp_path, max_steps=3), train_dataset=TRANSLATIONS)
    assert trainer.train().global_step == 3


def test_labels_that_nobody_declared_are_named(tmp_path: Path) -> None:
    records = [{"input_ids": [5] * n, "labels": [0] * n} for n in (2, 3) * 4]
    args = arguments(tmp_path, max_steps=3, per_device_train_batch_size=8)
    with pytest.raises(ValueError, match="the field 'labels' has another shape in some records"):
        PrivateTrainer(model(), args, train_dataset=records).train()


def test_a_collator_sees_one_record_and_what_it_returns_for_one_is_a_row() -> None:
    seen: list[int] = []

    def collate(records: list[Any]) -> dict[str, Any]:
        seen.append(len(records))
        return {
            **default_collate([{"input_ids": torch.tensor(r["input_ids"])} for r in records]),
            "text": ["a"],
            "no": None,
        }

    records = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7, 8]}, {"input_ids": [9]}]
    found = PADDING.bucketed(records, collate)
    assert list(found[1]) == ["input_ids", "text", "attention_mask"], "and no field that is None"
    whole = records_of(found).gather(np.array([0, 2]))
    assert whole["input_ids"].tolist() == [[1, 2, 3, 0], [9, 0, 0, 0]]
    assert whole["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert whole["text"] == ["a", "a"]
    assert set(seen) == {1}
