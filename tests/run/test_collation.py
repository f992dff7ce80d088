"""Records of one microbatch have one form and are joined by their rows: none decides how the others are computed."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
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

from noisette.run.collation import collated, joined
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
    ({"x": ONE}, OrderedDict(x=OTHER), "different types, such as dict and OrderedDict"),
    (ONE, OTHER.double(), r"different types, such as Tensor of torch\.float32 and Tensor of torch\.float64"),
    (
        (ONE, 1),
        (OTHER, 0.5),
        r"the field 1 has different types, such as Tensor of torch\.int64 and Tensor of torch\.fl",
    ),
    ((ONE, [1, 2]), (OTHER, [1, 2.5]), r"the field '1\.1' has different types"),
    ((ONE, [1, 2]), (OTHER, [1]), "the field 1 has another shape in some records, such as .*; pad it"),
    ((ONE, 1), (torch.zeros(4), 1), "the field 0 has another shape in some records, such as .*; pad it"),
    ((ONE, 1), (OTHER, "text"), "the field 1 has different types, such as Tensor of torch.int64 and tuple"),
    (np.ma.masked_less(np.ones(2), 2), np.ones(2), r"masked values.*filled"),
]


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_records_of_two_forms_are_refused(one: Any, other: Any, message: str) -> None:
    for records in ([one, one, other], [other, one]):
        with pytest.raises(ValueError, match=message if records[0] is one else "record"):
            collated(records, "; pad it")


@pytest.mark.parametrize(
    "records",
    [
        [(ONE, 1), (OTHER, np.int64(2))],
        [(ONE, True), (OTHER, np.bool_(False))],
        [Pair(ONE, 1), Pair(OTHER, 2)],
        [{"x": {"y": [ONE, OTHER]}}, {"x": {"y": [OTHER, ONE]}}],
    ],
)
def test_records_of_one_form_are_collated_as_by_torch(records: list[Any]) -> None:
    torch.testing.assert_close(collated(records), default_collate(records))


@dataclass(frozen=True)
class Sample:
    x: Tensor
    name: str


class Opaque:
    """No container that is opened."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


A, B, D = (torch.full((1, 2), float(k)) for k in range(3))
ROWS = torch.cat([A, B, D])


def found_in(value: Any) -> Any:
    """The tensors of a container that has one."""
    return value["x"] if isinstance(value, Mapping) else value.x if hasattr(value, "x") else value[0]


@pytest.mark.parametrize(
    "container",
    [
        *(
            lambda x: {"x": x},
            lambda x: UserDict(x=x),
            lambda x: OrderedDict(x=x),
            lambda x: MappingProxyType({"x": x}),
        ),
        *(
            lambda x: (x, x),
            lambda x: [x, x],
            lambda x: Pair(x, 3),
            Single,
            lambda x: Sample(x, "name"),
            lambda x: deque([x]),
        ),
        *(lambda x: (x.numpy(),), lambda x: {"x": x.numpy()}),
    ],
)
def test_rows_in_containers(container: Any) -> None:
    whole = joined([container(one) for one in (A, B, D)])
    assert torch.equal(found_in(whole), ROWS)
    kinds = type(whole), type(container(A))
    assert kinds[0] is kinds[1] or kinds == (dict, MappingProxyType)
    nested = joined([{"deep": [container(one), one]} for one in (A, B, D)])
    assert torch.equal(found_in(nested["deep"][0]), ROWS)
    assert torch.equal(nested["deep"][1], ROWS)


def test_tensors_without_an_axis_are_stacked() -> None:
    for numbers in ([torch.tensor(k) for k in (4, 5, 6)], [np.int64(k) for k in (4, 5, 6)]):
        assert joined(numbers).tolist() == [4, 5, 6]
        assert joined(numbers[:1]).tolist() == [4], "in the form that it has beside others"
    assert joined([np.float32(0.5), np.float32(1)]).dtype == torch.float32


def test_what_is_no_tensor_becomes_a_list() -> None:
    entries: dict[str, list[Any]] = {
        "texts": ["a", "b", "c"],
        "numbers": [1, 2.5, True],
        "none for some": [None, "b", None],
        "objects": [Opaque(A), Opaque(B), Opaque(D)],
        "tokens": [["a", "b"], ["c"], []],
        "arrays of texts": [np.array(["a"]), np.array(["b", "c"]), np.array([])],
    }
    entries["arrays of texts"][2] = entries["arrays of texts"][0]
    for values in entries.values():
        whole = joined([{"x": one, "more": value} for one, value in zip((A, B, D), values, strict=True)])
        assert whole["more"] == values
        assert torch.equal(whole["x"], ROWS)
    assert joined([(one, [text]) for one, text in ((A, "a"), (B, "b"))])[1] == ["a", "b"], "lists of one entry"
    assert joined([(one, None) for one in (A, B)])[1] is None


def test_a_microbatch_of_one_record_is_given_as_it_is() -> None:
    graph, time_first = Opaque(A), torch.ones(5, 1, 2)
    for value in (graph, "text", 3, None, ["a", "b"], time_first, pack_sequence([torch.ones(3)])):
        [found] = joined([(value,)])
        assert type(found) is type(value)
        assert found is value or found == value or torch.equal(found.data, value.data)


# Microbatches of one record.
NOT_JOINED: list[tuple[Any, Any, str]] = [
    ((A, A), (B, torch.ones(2, 2)), r"the field 1 of one record the shape \(2, 2\), but the first axis"),
    (
        torch.ones(5, 1),
        torch.ones(4, 1),
        r"a tensor of one record the shape \(5, 1\).*in the shape \(1, \.\.\.\).*graphs",
    ),
    (A, torch.ones(1, 3), r"shapes, such as \(1, 2\) and \(1, 3\): pad .*PaddedBuckets.*Graphs.*microbatches\(1\)"),
    (torch.tensor(1.0), torch.ones(1), "different shapes"),
    ((A, None), (B, B), "the field 1 has different types, such as NoneType and Tensor"),
    ((A, "text"), (B, B), "the field 1 has different types, such as str and Tensor"),
    ((A, []), (B, [B]), "the field 1 has another shape in some records"),
    ({"x": A}, {"x": A, "y": B}, "some records have no field 'y'"),
    ((A,), [B], "different types, such as tuple and list"),
    (pack_sequence([torch.ones(1, 2)]), pack_sequence([torch.ones(1, 2)]), "PackedSequence holds positions"),
]


@pytest.mark.parametrize(("one", "other", "message"), NOT_JOINED)
def test_what_cannot_be_joined_is_refused(one: Any, other: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        joined([one, other])


def loss(model: nn.Module, record: dict[str, torch.Tensor]) -> torch.Tensor:
    losses = (model(record["x"])[:, 0] - 3).square()
    return (losses * record["weight"] if "weight" in record else losses).sum()


def train(records: list[dict[str, Any]]) -> None:
    """One step with all records."""
    with start(nn.Linear(4, 1), records, sampling_rate=1.0, steps=1) as run:
        take_steps(run, loss, size=100)


@pytest.mark.parametrize("first", [{"x": torch.ones(4)}, {"x": torch.ones(4, dtype=torch.float64), "weight": -1.0}])
def test_a_record_of_another_form_does_not_change_what_others_are_computed_with(first: dict[str, Any]) -> None:
    """Collated by its first record, the sum of this microbatch was 43 clipping norms from that of the others."""
    records = [{"x": row, "weight": -1.0} for row in torch.randn(40, 4)]
    train(records)
    with pytest.raises(ValueError, match=r"no field 'weight'|different types"):
        train([first, *records])
