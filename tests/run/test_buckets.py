"""Sequences padded to buckets: what a microbatch holds, in which order, and what is refused."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from noisette import PaddedBuckets
from noisette.core.batches import Batch
from noisette.run.checkpoint import Fingerprint
from noisette.run.loading import Fetch, MeasuredSize, Thread, UnmeasuredMemory, records_of

LENGTHS = [3, 9, 0, 4, 5, 40, 1, 8, 16, 17, 4, 2]
EDGES = (4, 8, 16)
IDS = [torch.arange(1, n + 1) for n in LENGTHS]
SHORTEST = np.array([0, 2, 3, 6, 10, 11])  # in the bucket of 4


def microbatches(dataset: PaddedBuckets, indices: Any, size: int | str, memory: Any = None) -> list[Any]:
    """All microbatches of one batch, each of them processed."""
    records, parts = records_of(dataset), []
    fetch = Fetch(Thread(records.gather))
    batch = Batch(np.asarray(indices), records, MeasuredSize(memory or UnmeasuredMemory()), fetch)
    for part in batch.microbatches(size):
        parts.append(part)
        batch.bounded += batch.current
    return parts


def ids_of(rows: Tensor) -> list[list[int]]:
    return [row[row != 0].tolist() for row in rows]


@pytest.mark.parametrize("size", [1, 2, 5, 100, "auto"])
def test_each_record_comes_once_in_the_bucket_of_its_own_length(size: int | str) -> None:
    parts = microbatches(PaddedBuckets(IDS, EDGES), range(12), size)
    widths = [part.shape[1] for part in parts]
    assert widths == sorted(widths)
    assert set(widths) == set(EDGES)
    found = sorted(ids for part in parts for ids in ids_of(part))
    assert found == sorted(ids[:16].tolist() for ids in IDS)
    for part in parts:
        for ids in ids_of(part):
            assert part.shape[1] == next((edge for edge in EDGES if edge >= len(ids)), EDGES[-1])


def test_automatic_size_grows_in_each_bucket_by_itself() -> None:
    """What fits of short sequences says nothing about long ones."""
    parts = microbatches(PaddedBuckets(IDS, EDGES), range(12), "auto")
    assert [tuple(part.shape) for part in parts] == [
        *((1, 4), (2, 4), (3, 4)),
        *((1, 8), (1, 8)),
        *((1, 16), (2, 16), (1, 16)),
    ]


def test_records_keep_their_order_within_a_bucket() -> None:
    dataset = PaddedBuckets([(ids, k) for k, ids in enumerate(IDS)], EDGES)
    _, places = microbatches(dataset, SHORTEST, 100)[0]
    assert places.tolist() == SHORTEST.tolist()


def test_empty_batch_and_empty_data_set() -> None:
    assert microbatches(PaddedBuckets(IDS, EDGES), np.arange(0), 4) == []
    empty = PaddedBuckets([], EDGES)
    assert len(empty) == 0
    assert microbatches(empty, np.arange(0), "auto") == []


FORMS: dict[str, tuple[list[Any], Any]] = {
    "tensors": (IDS, 0),
    "arrays": ([ids.numpy() for ids in IDS], 0),
    "lists": ([ids.tolist() for ids in IDS], 0),
    "pairs": ([(ids, k) for k, ids in enumerate(IDS)], 0),
    "places": ([(k, ids) for k, ids in enumerate(IDS)], {1: 0}),
    "names": ([{"ids": ids, "label": k} for k, ids in enumerate(IDS)], {"ids": 0}),
    "mapping": ([UserDict(ids=ids.tolist(), label=k) for k, ids in enumerate(IDS)], {"ids": 0}),
}


@pytest.mark.parametrize(("records", "pad"), FORMS.values(), ids=FORMS)
def test_forms_of_records(records: list[Any], pad: Any) -> None:
    [part] = microbatches(PaddedBuckets(records, EDGES, pad=pad), SHORTEST, 100)
    rows = (
        part["ids"]
        if isinstance(part, dict)
        else next(x for x in part if x.dim() == 2)
        if isinstance(part, list)
        else part
    )
    assert rows.shape == (6, 4)
    assert ids_of(rows) == [IDS[k].tolist() for k in SHORTEST]
    if isinstance(part, dict):
        assert part["label"].tolist() == SHORTEST.tolist()


def test_fields_of_a_tokenizer_with_labels_for_each_token() -> None:
    records = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids + 100} for ids in IDS]
    dataset = PaddedBuckets(records, EDGES, pad={"input_ids": 7, "attention_mask": 0, "labels": -100})
    assert {name: field.tolist() for name, field in dataset[0].items()} == {
        "input_ids": [1, 2, 3, 7],
        "attention_mask": [1, 1, 1, 0],
        "labels": [101, 102, 103, -100],
    }
    assert all(len(field) == 16 for field in dataset[5].values()), "longer ones are cut to the last edge"


def test_a_fingerprint_knows_the_data_set_by_its_records() -> None:
    mark = Fingerprint.of(PaddedBuckets(IDS, EDGES))
    assert mark.fits(PaddedBuckets([ids.clone() for ids in IDS], EDGES))
    assert not mark.fits(PaddedBuckets([ids + (k == 5) for k, ids in enumerate(IDS)], EDGES))


REFUSED = {
    "no edges": (IDS, (), 0, "at least one as edges"),
    "edge of zero": (IDS, (0, 4), 0, "at least one as edges"),
    "part of a position": (IDS, (2.5, 4), 0, "at least one as edges"),
    "descending": (IDS, (8, 4), 0, "ascending"),
    "twice": (IDS, (4, 4), 0, "ascending"),
    "no index": (iter(IDS), EDGES, 0, "no length and index"),
    "unnamed fields": ([{"a": IDS[0]}], EDGES, 0, "name the fields of record 0"),
    "missing field": ([{"a": IDS[0]}, {"b": IDS[0]}], EDGES, {"a": 0}, "record 1 has no field 'a'"),
    "fields of different lengths": ([(IDS[0], IDS[1])], EDGES, {0: 0, 1: 0}, "record 0 differ in length"),
    "other types": ([IDS[0], IDS[0].float()], EDGES, 0, "positions of record 1"),
    "other positions": ([torch.ones(3, 2), torch.ones(3, 4)], EDGES, 0, "positions of record 1"),
    "number": ([torch.tensor(3)], EDGES, 0, "first axis, got the number 3"),
}


@pytest.mark.parametrize(("records", "edges", "pad", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(records: Any, edges: Any, pad: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        PaddedBuckets(records, edges, pad=pad)


def test_a_microbatch_holds_one_pair_of_buckets() -> None:
    pairs = [{"source": list(range(1, n + 1)), "target": list(range(1, m + 1))} for n in (2, 7) for m in (3, 6, 7)] * 2
    padded = PaddedBuckets(PaddedBuckets(pairs, (4, 8), pad={"source": 0}), (4, 8), pad={"target": -1})
    parts = microbatches(padded, range(12), 100)
    shapes = [(part["source"].shape, part["target"].shape) for part in parts]
    assert sorted(shapes) == [((2, 4), (2, 4)), ((2, 8), (2, 4)), ((4, 4), (4, 8)), ((4, 8), (4, 8))]
    found = [
        (int((source > 0).sum()), int((target > 0).sum()))
        for part in parts
        for source, target in zip(part["source"], part["target"], strict=True)
    ]
    assert sorted(found) == sorted([(n, m) for n in (2, 7) for m in (3, 6, 7)] * 2)


def test_a_field_that_is_not_padded_is_named_where_it_differs() -> None:
    texts = [{"ids": [1, 2, 3][:n], "tags": [0] * n} for n in (2, 3)]
    with pytest.raises(ValueError, match="the field 'tags' has another shape"):
        microbatches(
            PaddedBuckets([{k: torch.tensor(v) for k, v in t.items()} for t in texts], (4,), pad={"ids": 0}),
            range(2),
            2,
        )
    with pytest.raises(ValueError, match="the field 'ids' has another shape"):
        microbatches([{"ids": torch.zeros(n)} for n in (2, 3)], range(2), 2)  # type: ignore[arg-type]
