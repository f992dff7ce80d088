"""The arguments of a loss: rows of tensors, and entries of several examples that are no tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PrivacyError
from noisette.core.loss import Microbatch
from oracle import example_gradients
from small_loop import clipped_by

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
TEXTS = ["a b", "c", "d e f"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2).double()


def summed(loss: Callable[..., Tensor], *batch: Any) -> Tensor:
    return clipped_by(net(), 0.5, loss, batch)


NO_ROWS: dict[str, tuple[tuple[Any, ...], str]] = {
    "no tensor": ((), "no tensor"),
    "only texts": ((TEXTS,), "no tensor"),
    "unequal rows": ((X, X[:2]), r"\(3, 4\), \(2, 4\)"),
    "a scalar": ((X, torch.zeros(())), "one row per example"),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_tensors_must_have_one_row_per_example(name: str) -> None:
    batch, words = NO_ROWS[name]
    with pytest.raises(PrivacyError, match=words):
        summed(lambda model, *given: model(given[0]).sum(), *batch)


READS: dict[str, tuple[Any, Callable[[Any], float]]] = {
    "texts by length": (TEXTS, lambda entries: len(entries[0].split())),
    "texts in a loop": (TEXTS, lambda entries: sum(len(text) for text in entries)),
    "numbers": ([1.0, 2.0, 3.0], lambda entries: entries[0]),
    "a tuple of flags": ((True, False, True), lambda entries: float(any(entries))),
    "an array": (np.arange(3.0), lambda entries: float(entries.mean())),
    "an array in a product": (np.arange(3.0), lambda entries: 2 * entries),
    "by name": ({"text": TEXTS}, lambda entries: len(entries["text"])),
    "objects": ([object(), object(), object()], lambda entries: hash(entries[0]) % 7),
    "an argument of torch": (TEXTS, lambda entries: torch.add(torch.ones(1), entries)),
    "a set": ({"a", "b"}, lambda entries: float("a" in entries)),
    "a number of entries": ([1.0, 2.0], lambda entries: float(entries[0])),  # which tells how many examples there are
}


@pytest.mark.parametrize("name", READS)
def test_entries_of_several_examples_are_refused_where_the_loss_reads_them(name: str) -> None:
    entries, read = READS[name]
    with pytest.raises(PrivacyError, match=r"entries of several examples.*microbatches\(1\)"):
        summed(lambda model, x, entries: model(x).square().sum() * read(entries), X, entries)


def test_texts_as_labels_are_refused() -> None:
    with pytest.raises(PrivacyError, match="entries of several examples, such as str"):
        summed(lambda model, x, labels: torch.nn.functional.cross_entropy(model(x), labels), X, TEXTS)


def test_entries_that_nobody_reads_and_plain_values_pass() -> None:
    expected = summed(lambda model, x: model(x).square().sum(), X)
    given = ({"text": TEXTS, "none": [None, None, None], "mode": "sum", "scale": 1.0, "x": X}, None)
    found = summed(lambda model, batch, none: batch["scale"] * model(batch["x"]).square().sum(), *given)
    assert torch.equal(found, expected)


def test_a_list_with_a_tensor_is_a_nested_batch() -> None:
    y = torch.tensor([0, 1, 0])
    loss = lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]["y"])  # noqa: E731
    expected = example_gradients(net(), lambda m, x, y: F.cross_entropy(m(x), y), (X, y)).clipped(0.5).vector
    torch.testing.assert_close(summed(loss, [X, {"y": y, "kind": "a"}]), expected)


def test_a_row_is_a_copy_of_its_own() -> None:
    x = X.clone()
    one = Microbatch((x,), {}).of_rows([1])
    one.tensors[0].zero_()
    assert torch.equal(x, X)
    assert one.tensors[0].shape == (1, 4)
