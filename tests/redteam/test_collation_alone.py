"""Functions that collate, and data sets that transform, mix the records that they see, and so they see one at a time.

Each of them would let one record change the gradients of all others: by padding to the longest, sorting, normalising by
statistics of the batch or mixing.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Subset

from noisette import PaddedBuckets, PerExampleClip, Users, privatize
from noisette.run.loading import records_of

C, MOST = 0.3, 1 + 2.0**-13  # what a sum may move, in bounds
X = torch.randn(20, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.arange(20) % 3
RECORDS = [{"x": x, "y": int(y)} for x, y in zip(X, Y, strict=True)]
FORGED = {"x": 1e3 * torch.ones(6, dtype=torch.float64), "y": 2}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.hidden, self.out = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


class Words(nn.Module):
    """Averages over all positions, padding included."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.words, self.out = nn.Embedding(30, 5).double(), nn.Linear(5, 3).double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids).mean(1))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def of_fields(model: nn.Module, fields: Any) -> Tensor:
    return loss(model, fields["x"], fields["y"])


def released_sum(
    dataset: Any, collate: Any = None, model: type[nn.Module] = Net, size: int | str = 7, **loading: Any
) -> Tensor:
    """The clipped sum of one batch of all records."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    clip = PerExampleClip(net, C, capture="eager")
    declared: dict[str, Any] = {"expected_batch_size": 1, "sampling_rate": 1.0, "steps": 1, "noise_multiplier": 1e-9}
    with privatize(clip, optimizer, dataset, **declared, collate_fn=collate) as run:
        for batch in run.batches(**loading):
            for part in batch.microbatches(size):
                if isinstance(part, tuple | list):
                    run.accumulate(loss, *part)
                else:
                    run.accumulate(of_fields, part)
            optimizer.step()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def one_at_a_time(model: type[nn.Module], rows: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The sum of the clipped gradients of inputs and labels, each differentiated alone."""
    net = model()
    total = torch.zeros(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    for x, y in rows:
        grads = torch.autograd.grad(loss(net, x[None], torch.tensor([y])), list(net.parameters()))
        one = torch.cat([g.flatten() for g in grads])
        total += one * min(1.0, C / float(one.norm()))
    return total


def stacked(records: Sequence[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([r["x"] for r in records]), torch.tensor([r["y"] for r in records])


def padding(records: list[Any]) -> tuple[Tensor, Tensor]:
    return pad_sequence([r["x"] for r in records], batch_first=True), torch.tensor([r["y"] for r in records])


def sorting(records: list[Any]) -> tuple[Tensor, Tensor]:
    """The inputs by their size, and the labels as they came: each record gets the label of another one."""
    return stacked(sorted(records, key=lambda r: float(r["x"].sum())))[0], stacked(records)[1]


def normalising(records: list[Any]) -> dict[str, Tensor]:
    x, y = stacked(records)
    return {"x": x / (1e-3 + x.square().mean(0).sqrt()), "y": y}


def mixing(records: list[Any]) -> UserDict:
    x, y = stacked(records)
    return UserDict(x=0.5 * (x + x.roll(1, 0)), y=y)


class Table(Dataset):
    """As of Hugging Face: rows are read together, and a transform sees as many as are asked for together."""

    def __init__(self, records: Sequence[Any], transform: Callable[[dict[str, list[Any]]], dict[str, Any]]) -> None:
        self.records, self.transform = records, transform

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | list[int]) -> dict[str, Any]:
        at = [key] if isinstance(key, int) else key
        columns = self.transform({name: [self.records[k][name] for k in at] for name in ("x", "y")})
        return {name: column[0] for name, column in columns.items()} if isinstance(key, int) else columns

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        columns = self[keys]
        return [{name: column[k] for name, column in columns.items()} for k in range(len(columns["x"]))]


def normalised(rows: dict[str, list[Any]]) -> dict[str, Any]:
    x = torch.stack(rows["x"])
    return {"x": x / (1e-3 + x.square().mean(0).sqrt()), "y": rows["y"]}


def transformed(records: Sequence[Any]) -> Table:
    return Table(records, normalised)


def within(records: Sequence[Any]) -> Subset:
    return Subset(Table(records, normalised), range(len(records)))


MIXING: dict[str, tuple[Any, Any, Callable[[Any], Tensor]]] = {
    "padding": (list, padding, lambda r: r["x"]),
    "sorting": (list, sorting, lambda r: r["x"]),
    "normalising": (list, normalising, lambda r: r["x"] / (1e-3 + r["x"].abs())),
    "mixing": (list, mixing, lambda r: r["x"]),
    "transform": (transformed, None, lambda r: r["x"] / (1e-3 + r["x"].abs())),
    "transform and subset": (within, None, lambda r: r["x"] / (1e-3 + r["x"].abs())),
    "transform and mixing": (transformed, mixing, lambda r: r["x"] / (1e-3 + r["x"].abs())),
}


@pytest.mark.parametrize("kind", MIXING)
def test_neighbours(kind: str) -> None:
    """The sum is that of each record collated alone, and a forged record moves it by no more than the bound."""
    dataset, collate, alone = MIXING[kind]
    without, joined = (released_sum(dataset(r), collate) for r in (RECORDS, [*RECORDS[:4], FORGED, *RECORDS[4:]]))
    torch.testing.assert_close(without, one_at_a_time(Net, [(alone(r), r["y"]) for r in RECORDS]), rtol=1e-6, atol=1e-7)
    assert (joined - without).norm() <= C * MOST
    torch.testing.assert_close(
        joined - without, one_at_a_time(Net, [(alone(FORGED), FORGED["y"])]), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("kind", ["normalising", "transform"])
def test_loading_processes_collate_alone(kind: str) -> None:
    dataset, collate, alone = MIXING[kind]
    found = released_sum(dataset(RECORDS), collate, workers=1)
    torch.testing.assert_close(found, one_at_a_time(Net, [(alone(r), r["y"]) for r in RECORDS]), rtol=1e-6, atol=1e-7)


def test_users_by_a_function_do_not_see_two_records() -> None:
    numbers = Users(lambda record: round(float(record["x"].sum()), 6), most_records=1).numbers(transformed(RECORDS), 20)
    expected = [round(float((r["x"] / (1e-3 + r["x"].abs())).sum()), 6) for r in RECORDS]
    assert [expected.index(value) for value in expected] == [numbers.tolist().index(n) for n in numbers]


# Sequences of several lengths, and the remedies that the message names


def texts(lengths: Sequence[int]) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(5)
    return [{"x": torch.randint(1, 30, (n,), generator=draw), "y": k % 3} for k, n in enumerate(lengths)]


TEXTS, LONG = texts((3, 2, 4, 3, 7)), {"x": torch.full((29,), 7), "y": 1}


def test_padding_to_the_longest_is_refused_and_buckets_are_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"another shape .*PaddedBuckets.*microbatches\(1\)"):
        released_sum(TEXTS, padding, Words)
    sums = []
    for records in (TEXTS, [*TEXTS, LONG]):
        found = released_sum(PaddedBuckets(records, (4, 8, 32), pad={"x": 0}), padding, Words)
        rows = [(torch.zeros(4 if len(r["x"]) <= 4 else 8 if len(r["x"]) <= 8 else 32).long(), r["y"]) for r in records]
        for (row, _), r in zip(rows, records, strict=True):
            row[: len(r["x"])] = r["x"]
        torch.testing.assert_close(found, one_at_a_time(Words, rows), rtol=1e-6, atol=1e-7)
        sums.append(found)
    assert (sums[1] - sums[0]).norm() <= C * MOST


def test_one_at_a_time_records_have_any_shape() -> None:
    sums = [released_sum(records, padding, Words, size=1) for records in (TEXTS, [*TEXTS, LONG])]
    for found, records in zip(sums, (TEXTS, [*TEXTS, LONG]), strict=True):
        expected = one_at_a_time(Words, [(r["x"], r["y"]) for r in records])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert (sums[1] - sums[0]).norm() <= C * MOST


def test_a_transform_that_pads_is_refused_and_one_shape_is_the_remedy() -> None:
    def pads(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": pad_sequence(rows["x"], batch_first=True), "y": rows["y"]}

    def pads_to_one_length(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": torch.stack([nn.functional.pad(x, (0, 32 - len(x))) for x in rows["x"]]), "y": rows["y"]}

    with pytest.raises(ValueError, match=r"the field 'x' has another shape .*bring each record to one shape"):
        released_sum(Table(TEXTS, pads), None, Words)
    without, joined = (released_sum(Table(r, pads_to_one_length), None, Words) for r in (TEXTS, [*TEXTS, LONG]))
    rows = [(nn.functional.pad(r["x"], (0, 32 - len(r["x"]))), r["y"]) for r in TEXTS]
    torch.testing.assert_close(without, one_at_a_time(Words, rows), rtol=1e-6, atol=1e-7)
    assert (joined - without).norm() <= C * MOST


def test_time_first_is_refused_and_the_record_on_the_first_axis_is_the_remedy() -> None:
    def time_first(records: list[Any]) -> tuple[Tensor, Tensor]:
        return pad_sequence([r["x"] for r in records]), torch.tensor([r["y"] for r in records])

    equal = texts((5, 5, 5))
    with pytest.raises(
        ValueError, match=r"the field 0 of one record the shape \(5, 1\).*first axis.*microbatches\(1\)"
    ):
        released_sum(equal, time_first, Words)
    with_rows = released_sum(equal, lambda records: (time_first(records)[0].mT, time_first(records)[1]), Words)
    expected = one_at_a_time(Words, [(r["x"], r["y"]) for r in equal])
    torch.testing.assert_close(with_rows, expected, rtol=1e-6, atol=1e-7)


def test_graphs_come_one_at_a_time() -> None:
    """A graph has its nodes on the first axis; the loop gives it an axis of examples."""
    graphs = [(X[k : k + n], torch.tensor(k % 3)) for k, n in enumerate((2, 5, 3, 1))]

    def batched(records: list[Any]) -> dict[str, Any]:
        return {"nodes": torch.cat([nodes for nodes, _ in records]), "y": torch.stack([y for _, y in records])}

    def of_graph(model: nn.Module, nodes: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(nodes).mean(1), y)

    with pytest.raises(ValueError, match=r"the field 'nodes' of one record the shape \(2, 6\).*graphs"):
        records_of(graphs, batched).gather(np.arange(3))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    declared: dict[str, Any] = {"expected_batch_size": 1, "sampling_rate": 1.0, "steps": 1, "noise_multiplier": 1e-9}
    with privatize(PerExampleClip(net, C, capture="eager"), optimizer, graphs, **declared, collate_fn=batched) as run:
        for batch in run.batches():
            for graph in batch.microbatches(1):
                run.accumulate(of_graph, graph["nodes"][None], graph["y"])
            optimizer.step()
    found, total = torch.cat([p.grad.flatten() for p in net.parameters()]), torch.zeros(0)
    other = Net()
    for nodes, y in graphs:
        grads = torch.autograd.grad(of_graph(other, nodes[None], y[None]), list(other.parameters()))
        one = torch.cat([g.flatten() for g in grads])
        one = one * min(1.0, C / float(one.norm()))
        total = one if not len(total) else total + one
    torch.testing.assert_close(found, total, rtol=1e-6, atol=1e-7)


def test_a_transform_that_makes_several_records_of_one_is_refused() -> None:
    def halves(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": [half for x in rows["x"] for half in x.view(2, 3)], "y": [y for y in rows["y"] for _ in range(2)]}

    with pytest.raises(ValueError, match="makes 2 records of the one with index 0"):
        released_sum(Table(RECORDS, halves))
