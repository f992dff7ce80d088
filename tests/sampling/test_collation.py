"""Records of one microbatch have one form, so that no record decides how the others are computed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from noisette import PerExampleClip, privatize
from noisette.sampling.collation import check_one_form

ONE, OTHER = torch.ones(3), torch.zeros(3)


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


class Single(NamedTuple):
    x: torch.Tensor


DIFFERENT: list[tuple[Any, Any, str]] = [
    ({"x": ONE, "weight": 1.0}, {"x": OTHER}, r"some records have no field 'weight', and others have"),
    ({"a": {"x": ONE, "weight": 1.0}}, {"a": {"x": OTHER}}, r"some records have no field 'a\.weight'"),
    ({"x": ONE, "y": 1}, {"y": 1, "x": OTHER}, "the records have fields in another order"),
    (Pair(ONE, 1), Single(OTHER), "the records have different types, such as Pair and Single"),
    ((ONE, 1), (OTHER,), "some records have no field 1"),
    ((ONE, 1), [OTHER, 1], "the records have different types, such as tuple and list"),
    ({"x": ONE}, OrderedDict(x=OTHER), "different types, such as dict and OrderedDict"),
    (ONE, OTHER.double(), r"different types, such as Tensor of torch\.float32 and Tensor of torch\.float64"),
    ({"x": ONE}, {"x": OTHER.to(torch.uint8)}, "the field 'x' has different types"),
    ({"x": ONE}, {"x": np.zeros(3, np.float32)}, "the field 'x' has different types, such as Tensor of"),
    ((ONE, 1), (OTHER, 0.5), "the field 1 has different types, such as int and float"),
    ((ONE, 1), (OTHER, True), "the field 1 has different types, such as int and bool"),
    ((ONE, [1, 2]), (OTHER, [1, 2.5]), r"the field '1\.1' has different types, such as int and float"),
    ((ONE, [1, 2]), (OTHER, [1]), "the field 1 has another shape in some records, such as .*; pad it"),
    ((ONE, 1), (torch.zeros(4), 1), "the field 0 has another shape in some records, such as .*; pad it"),
    (ONE, torch.zeros(4), r"the records have different shapes, such as \(3,\) and \(4,\); pad it"),
    ((ONE, None), (OTHER, "text"), "the field 1 has different types, such as NoneType and str"),
]


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_records_of_two_forms_are_refused(one: Any, other: Any, message: str) -> None:
    for records in ([one, one, other], [other, one]):
        with pytest.raises(ValueError, match=message if records[0] is one else "record"):
            check_one_form(records, "; pad it")


@pytest.mark.parametrize(
    "records",
    [
        [],
        [ONE, OTHER],
        [(ONE, 1), (OTHER, np.int64(2))],
        [(ONE, True), (OTHER, np.bool_(False))],
        [(ONE, [1, 2]), (OTHER, [3, 4])],
        [{"x": ONE, "text": "one"}, {"x": OTHER, "text": "another"}],
        [Pair(ONE, 1), Pair(OTHER, 2)],
        [{"x": {"y": [ONE, OTHER]}}, {"x": {"y": [OTHER, ONE]}}],
    ],
)
def test_records_of_one_form_pass(records: list[Any]) -> None:
    check_one_form(records, "")


def test_masked_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"masked values.*filled"):
        check_one_form([(np.ma.masked_less(np.arange(3.0), 1), 1)], "")


def loss(model: nn.Module, record: dict[str, torch.Tensor]) -> torch.Tensor:
    losses = (model(record["x"])[:, 0] - 3).square()
    return (losses * record["weight"] if "weight" in record else losses).sum()


def train(records: list[dict[str, Any]]) -> None:
    """One step with all records."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    clip = PerExampleClip(model, 1.0)
    with privatize(
        clip, optimizer, records, expected_batch_size=1, sampling_rate=1.0, steps=1, noise_multiplier=1.0
    ) as run:
        for batch in run.batches():
            for microbatch in batch.microbatches(100):
                run.accumulate(loss, microbatch)
            optimizer.step()


@pytest.mark.parametrize("first", [{"x": torch.ones(4)}, {"x": torch.ones(4, dtype=torch.float64), "weight": -1.0}])
def test_a_record_of_another_form_does_not_change_what_others_are_computed_with(first: dict[str, Any]) -> None:
    """Collated by its first record, the sum of this microbatch was 43 clipping norms from that of the others."""
    records = [{"x": row, "weight": -1.0} for row in torch.randn(40, 4)]
    train(records)
    with pytest.raises(ValueError, match=r"no field 'weight'|different types"):
        train([first, *records])
