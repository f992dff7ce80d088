"""Records of one microbatch are joined by their rows, sequences padded to buckets: none decides over the others."""

from collections import UserDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate

from noisette import PaddedBuckets
from noisette.core.batches import Batch
from noisette.run.checkpoint import Fingerprint
from noisette.run.collation import collated, joined
from noisette.run.loading import Fetch, MeasuredSize, Thread, UnmeasuredMemory, records_of
from small_loop import start, take_steps

ONE, OTHER = torch.ones(3), torch.zeros(3)


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


class Single(NamedTuple):
    x: torch.Tensor


# Records in their own form, and what is said of them.
DIFFERENT: list[tuple[Any, Any, str]] = [
    ({"x": ONE, "weight": 1.0}, {"x": OTHER}, r"some records have no field 'weight', and others have"),
    ({"a": {"x": ONE, "weight": 1.0}}, {"a": {"x": OTHER}}, r"some records have no field 'a\.weight'"),
    ({"x": ONE, "y": 1}, {"y": 1, "x": OTHER}, "the records have fields in another order"),
    (Pair(ONE, 1), Single(OTHER), "the records have different types, such as Pair and Single"),
    ((ONE, 1), (OTHER,), r"the records have different shapes, such as \(2,\) and \(1,\); pad it"),
    (ONE, OTHER.double(), r"different types, such as Tensor of torch\.float32 and Tensor of torch\.float64"),
    ((ONE, 1), (OTHER, 0.5), r"the field 1 has different types, such as .*torch\.int64 and Tensor of torch\.fl"),
    ((ONE, [1, 2]), (OTHER, [1]), "the field 1 has another shape in some records, such as .*; pad it"),
    ((ONE, 1), (OTHER, "text"), "the field 1 has different types, such as Tensor of torch.int64 and tuple"),
    (np.ma.masked_less(np.ones(2), 2), np.ones(2), r"masked values.*filled"),
]


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_records_of_two_forms_are_refused(one, other, message):
    for records in ([one, one, other], [other, one]):
        with pytest.raises(ValueError, match=message if records[0] is one else "record"):
            collated(records, "; pad it")


def test_records_of_one_form_are_collated_as_by_torch():
    nested = [{"x": {"y": [ONE, OTHER]}}, {"x": {"y": [OTHER, ONE]}}]
    for records in ([(ONE, True), (OTHER, np.bool_(False))], [Pair(ONE, 1), Pair(OTHER, 2)], nested):
        torch.testing.assert_close(collated(records), default_collate(records))


@dataclass(frozen=True)
class Sample:
    x: Tensor
    name: str


class Opaque:
    def __init__(self, x: Tensor) -> None:
        self.x = x


A, B, D = (torch.full((1, 2), float(k)) for k in range(3))
ROWS = torch.cat([A, B, D])


def found_in(value: Any) -> Any:
    return value["x"] if isinstance(value, Mapping) else value.x if hasattr(value, "x") else value[0]


@pytest.mark.parametrize(
    "container",
    [
        *(lambda x: UserDict(x=x), lambda x: MappingProxyType({"x": x}), lambda x: {"x": x.numpy()}),
        *(lambda x: [x, x], Single, lambda x: Sample(x, "name"), lambda x: deque([x])),
    ],
)
def test_rows_in_containers(container):
    whole = joined([container(one) for one in (A, B, D)])
    assert torch.equal(found_in(whole), ROWS)
    kinds = type(whole), type(container(A))
    assert kinds[0] is kinds[1] or kinds == (dict, MappingProxyType)
    nested = joined([{"deep": [container(one), one]} for one in (A, B, D)])
    assert torch.equal(found_in(nested["deep"][0]), ROWS)
    assert torch.equal(nested["deep"][1], ROWS)


def test_tensors_without_an_axis_are_stacked():
    for numbers in ([torch.tensor(k) for k in (4, 5, 6)], [np.int64(k) for k in (4, 5, 6)]):
        assert joined(numbers).tolist() == [4, 5, 6]
        assert joined(numbers[:1]).tolist() == [4], "in the form that it has beside others"
    assert joined([np.float32(0.5), np.float32(1)]).dtype == torch.float32


def test_what_is_no_tensor_becomes_a_list():
    objects = [Opaque(A), Opaque(B), Opaque(D)]
    for values in (["a", "b", "c"], [1, 2.5, True], [None, "b", None], objects, [["a", "b"], ["c"], []]):
        whole = joined([{"x": one, "more": value} for one, value in zip((A, B, D), values, strict=True)])
        assert whole["more"] == values
        assert torch.equal(whole["x"], ROWS)
    assert joined([(one, [text]) for one, text in ((A, "a"), (B, "b"))])[1] == ["a", "b"], "lists of one entry"
    assert joined([(one, None) for one in (A, B)])[1] is None


def test_a_microbatch_of_one_record_is_given_as_it_is():
    graph, time_first = Opaque(A), torch.ones(5, 1, 2)
    for value in (graph, "text", 3, None, ["a", "b"], time_first, pack_sequence([torch.ones(3)])):
        [found] = joined([(value,)])
        assert type(found) is type(value)
        assert found is value or found == value or torch.equal(found.data, value.data)


# Microbatches of one record.
NOT_JOINED: list[tuple[Any, Any, str]] = [
    ((A, A), (B, torch.ones(2, 2)), r"the field 1 of one record the shape \(2, 2\), but the first axis"),
    (torch.ones(5, 1), torch.ones(4, 1), r"one record the shape \(5, 1\).*the shape \(1, \.\.\.\).*graphs"),
    (A, torch.ones(1, 3), r"shapes, such as \(1, 2\) and \(1, 3\): give .*PaddedBuckets.*Graphs.*microbatches\(1\)"),
    ((A, None), (B, B), "the field 1 has different types, such as NoneType and Tensor"),
    ((A, []), (B, [B]), "the field 1 has another shape in some records"),
    ((A,), [B], "different types, such as tuple and list"),
    (pack_sequence([torch.ones(1, 2)]), pack_sequence([torch.ones(1, 2)]), "PackedSequence holds positions"),
]


@pytest.mark.parametrize(("one", "other", "message"), NOT_JOINED)
def test_what_cannot_be_joined_is_refused(one, other, message):
    with pytest.raises(ValueError, match=message):
        joined([one, other])


def loss(model: nn.Module, record: dict[str, torch.Tensor]) -> torch.Tensor:
    losses = (model(record["x"])[:, 0] - 3).square()
    return (losses * record["weight"] if "weight" in record else losses).sum()


def train(records: list[dict[str, Any]]) -> None:
    with start(nn.Linear(4, 1), records, sampling_rate=1.0, steps=1) as run:
        take_steps(run, loss, size=100)


@pytest.mark.parametrize("first", [{"x": torch.ones(4)}, {"x": torch.ones(4, dtype=torch.float64), "weight": -1.0}])
def test_a_record_of_another_form_does_not_change_what_others_are_computed_with(first):
    """Collated by its first record, the sum of this microbatch was 43 clipping norms from that of the others."""
    records = [{"x": row, "weight": -1.0} for row in torch.randn(40, 4)]
    train(records)
    with pytest.raises(ValueError, match=r"no field 'weight'|different types"):
        train([first, *records])


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
def test_each_record_comes_once_in_the_bucket_of_its_own_length(size):
    parts = microbatches(PaddedBuckets(IDS, EDGES), range(12), size)
    widths = [part.shape[1] for part in parts]
    assert (widths, set(widths)) == (sorted(widths), set(EDGES))
    assert sorted(ids for part in parts for ids in ids_of(part)) == sorted(ids[:16].tolist() for ids in IDS)
    for part in parts:
        for ids in ids_of(part):
            assert part.shape[1] == next((edge for edge in EDGES if edge >= len(ids)), EDGES[-1])


def test_automatic_size_grows_in_each_bucket_by_itself():
    """What fits of short sequences says nothing about long ones."""
    parts = microbatches(PaddedBuckets(IDS, EDGES), range(12), "auto")
    assert [tuple(part.shape) for part in parts] == [
        *((1, 4), (2, 4), (3, 4)),
        *((1, 8), (1, 8)),
        *((1, 16), (2, 16), (1, 16)),
    ]


def test_empty_batch_and_empty_data_set():
    assert microbatches(PaddedBuckets(IDS, EDGES), np.arange(0), 4) == []
    empty = PaddedBuckets([], EDGES)
    assert (len(empty), microbatches(empty, np.arange(0), "auto")) == (0, [])


RECORD_FORMS: dict[str, tuple[list[Any], Any]] = {
    "tensors": (IDS, 0),
    "lists": ([ids.tolist() for ids in IDS], 0),
    "places": ([(k, ids) for k, ids in enumerate(IDS)], {1: 0}),
    "mapping": ([UserDict(ids=ids.tolist(), label=k) for k, ids in enumerate(IDS)], {"ids": 0}),
}


@pytest.mark.parametrize(("records", "pad"), RECORD_FORMS.values(), ids=RECORD_FORMS)
def test_forms_of_records(records, pad):
    [part] = microbatches(PaddedBuckets(records, EDGES, pad=pad), SHORTEST, 100)
    fields = [*part.values()] if isinstance(part, dict) else part if isinstance(part, list) else [part]
    rows = next(field for field in fields if field.dim() == 2)
    assert rows.shape == (6, 4)
    assert ids_of(rows) == [IDS[k].tolist() for k in SHORTEST]
    if isinstance(part, dict):
        assert part["label"].tolist() == SHORTEST.tolist()


def test_a_fingerprint_knows_the_data_set_by_its_records():
    mark = Fingerprint.of(PaddedBuckets(IDS, EDGES))
    assert mark.fits(PaddedBuckets([ids.clone() for ids in IDS], EDGES))
    assert not mark.fits(PaddedBuckets([ids + (k == 5) for k, ids in enumerate(IDS)], EDGES))


REFUSED = {
    "no edges": (IDS, (), 0, "at least one as edges"),
    "no index": (iter(IDS), EDGES, 0, "no length and index"),
    "unnamed fields": ([{"a": IDS[0]}], EDGES, 0, "name the fields of record 0"),
    "missing field": ([{"a": IDS[0]}, {"b": IDS[0]}], EDGES, {"a": 0}, "record 1 has no field 'a'"),
    "fields of different lengths": ([(IDS[0], IDS[1])], EDGES, {0: 0, 1: 0}, "record 0 differ in length"),
    "number": ([torch.tensor(3)], EDGES, 0, "first axis, got the number 3"),
}


@pytest.mark.parametrize(("records", "edges", "pad", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(records, edges, pad, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PaddedBuckets(records, edges, pad=pad)


def test_a_microbatch_holds_one_pair_of_buckets():
    pairs = [{"source": list(range(1, n + 1)), "target": list(range(1, m + 1))} for n in (2, 7) for m in (3, 6, 7)] * 2
    padded = PaddedBuckets(PaddedBuckets(pairs, (4, 8), pad={"source": 0}), (4, 8), pad={"target": -1})
    parts = microbatches(padded, range(12), 100)
    shapes = [(part["source"].shape, part["target"].shape) for part in parts]
    assert sorted(shapes) == [((2, 4), (2, 4)), ((2, 8), (2, 4)), ((4, 4), (4, 8)), ((4, 8), (4, 8))]
    found = [row for part in parts for row in zip(*((part[k] > 0).sum(1) for k in ("source", "target")), strict=True)]
    assert sorted(found) == sorted([(n, m) for n in (2, 7) for m in (3, 6, 7)] * 2)
