"""Functions that collate, and data sets that transform, mix the records that they see, and so they see one at a time.

Each of them would let one record change the gradients of all others: by padding to the longest, sorting, normalising by
statistics of the batch or mixing.
"""

from collections import UserDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Subset

from model_cases import Forward
from noisette import PaddedBuckets, PerExampleClip, Users
from noisette.run.loading import MeasuredSize, UnmeasuredMemory, records_of
from oracle import clipped_sum
from small_loop import loss, start

C, MOST = 0.3, 1 + 2.0**-13  # what a sum may move, in bounds
X = torch.randn(20, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.arange(20) % 3
RECORDS = [{"x": x, "y": int(y)} for x, y in zip(X, Y, strict=True)]
FORGED = {"x": 1e3 * torch.ones(6, dtype=torch.float64), "y": 2}
Make = Callable[[], nn.Module]


def net() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def pooled(pool: Callable[[Tensor], Tensor]) -> nn.Module:
    """Pools the embeddings of all positions, padding included, without a mask on purpose."""
    torch.manual_seed(8)
    parts = {"words": nn.Embedding(30, 5), "out": nn.Linear(5, 3)}
    return Forward(lambda m, ids: m.out(pool(torch.tanh(m.words(ids)))), **parts).double()


POOLS: dict[str, Make] = {
    "mean": partial(pooled, lambda h: h.mean(1)),
    "last position": partial(pooled, lambda h: h[:, -1]),
    "root of the width": partial(pooled, lambda h: h.sum(1) / h.shape[1] ** 0.5),
}
words = POOLS["mean"]


def of_graph(model: nn.Module, nodes: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(nodes).mean(1), y)


def _out_of_memory(*batch: Any, **keywords: Any) -> None:
    raise torch.OutOfMemoryError("out of memory")


def released_sum(
    dataset: Any,
    collate: Any = None,
    make: Make = net,
    size: int | str = 7,
    *,
    loss: Callable[..., Tensor] = loss,
    holds: int = 10**6,
    as_batch: Callable[[Any], Any] = lambda part: part,
    **loading: Any,
) -> Tensor:
    """The clipped sum of one batch of all records, by a memory that holds so many examples."""
    clip = PerExampleClip(make(), C, capture="eager")
    declared: dict[str, Any] = {"expected_batch_size": 1, "sampling_rate": 1.0, "steps": 1, "noise_multiplier": 1e-9}
    with start(clip.model, dataset, clip=clip, **declared, collate_fn=collate) as run:
        run._measured = MeasuredSize(UnmeasuredMemory())
        for batch in run.batches(**loading):
            for part in batch.microbatches(size):
                with pytest.MonkeyPatch.context() as patch:
                    if isinstance(part, tuple | list):
                        if len(part[-1]) > holds:
                            patch.setattr(clip, "add", _out_of_memory)
                        run.accumulate(loss, *as_batch(part))
                    else:
                        run.accumulate(lambda model, fields: loss(model, fields["x"], fields["y"]), part)
            run.optimizer.step()
    return torch.cat([p.grad.flatten() for p in clip.model.parameters()])


def assert_alone(found, make, rows, *, loss=loss) -> None:
    """Check that this is the sum of the clipped gradients of inputs and labels, each differentiated alone."""
    each = [clipped_sum(make(), loss, (x[None], torch.tensor([y])), C).vector for x, y in rows]
    torch.testing.assert_close(found, torch.stack(each).sum(0), rtol=1e-6, atol=1e-7)


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


as_it_is: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731


def by_its_size(x: Tensor) -> Tensor:
    return x / (1e-3 + x.abs())


MIXING: dict[str, tuple[Any, Any, Callable[[Tensor], Tensor]]] = {
    "padding": (list, padding, as_it_is),
    "sorting": (list, sorting, as_it_is),
    "normalising": (list, normalising, by_its_size),
    "mixing": (list, mixing, as_it_is),
    "transform": (transformed, None, by_its_size),
    "transform and subset": (lambda records: Subset(transformed(records), range(len(records))), None, by_its_size),
}


@pytest.mark.parametrize("kind", MIXING)
def test_neighbours(kind: str) -> None:
    """The sum is that of each record collated alone, and a forged record moves it by no more than the bound."""
    dataset, collate, alone = MIXING[kind]
    without, joined = (released_sum(dataset(r), collate) for r in (RECORDS, [*RECORDS[:4], FORGED, *RECORDS[4:]]))
    assert_alone(without, net, [(alone(r["x"]), r["y"]) for r in RECORDS])
    assert_alone(joined - without, net, [(alone(FORGED["x"]), FORGED["y"])])
    assert (joined - without).norm() <= C * MOST


def test_loading_processes_collate_alone() -> None:
    found = released_sum(transformed(RECORDS), mixing, workers=1)
    assert_alone(found, net, [(by_its_size(r["x"]), r["y"]) for r in RECORDS])


def test_users_by_a_function_do_not_see_two_records() -> None:
    numbers = Users(lambda record: round(float(record["x"].sum()), 6), most_records=1).numbers(transformed(RECORDS), 20)
    expected = [round(float(by_its_size(r["x"]).sum()), 6) for r in RECORDS]
    assert [expected.index(value) for value in expected] == [numbers.tolist().index(n) for n in numbers]


EDGES = (4, 8, 32)


def texts(lengths: Sequence[int]) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(5)
    return [{"x": torch.randint(1, 30, (n,), generator=draw), "y": k % 3} for k, n in enumerate(lengths)]


TEXTS, LONG = texts((3, 2, 4, 3, 7, 12)), {"x": torch.full((29,), 7), "y": 1}
FORGED_TEXTS = {
    "long": LONG,
    "beyond the last bucket": {"x": torch.arange(5000) % 30, "y": 2},
    "empty": {"x": torch.zeros(0, dtype=torch.int64), "y": 0},
    "at an edge": {"x": torch.full((8,), 3), "y": 0},
}


def padded(record: dict[str, Any]) -> tuple[Tensor, int]:
    x = record["x"][: EDGES[-1]]
    width = next(edge for edge in EDGES if edge >= len(x))
    return nn.functional.pad(x, (0, width - len(x))), record["y"]


def in_buckets(records: Sequence[Any]) -> PaddedBuckets:
    return PaddedBuckets([(r["x"], r["y"]) for r in records], EDGES)


@pytest.mark.parametrize(("name", "pool"), [*zip(FORGED_TEXTS, [*POOLS, "mean"], strict=True)])
def test_a_forged_record_moves_the_sum_by_no_more_than_the_bound(name: str, pool: str) -> None:
    forged = FORGED_TEXTS[name]
    before, after = in_buckets(TEXTS), in_buckets([forged, *TEXTS])
    assert all(torch.equal(before[k][0], after[k + 1][0]) for k in range(len(TEXTS)))
    without, joined = (released_sum(records, None, POOLS[pool], 100) for records in (before, after))
    assert (joined - without).norm() <= C * MOST
    assert_alone(joined - without, POOLS[pool], [padded(forged)])


@pytest.mark.parametrize(("size", "holds"), [(1, 99), (3, 99), ("auto", 99), ("auto", 2), ("auto", 1)])
def test_the_sum_is_that_of_records_padded_one_at_a_time(size: int | str, holds: int) -> None:
    records = [*TEXTS, *FORGED_TEXTS.values()]
    found = released_sum(in_buckets(records), None, words, size, holds=holds)
    assert_alone(found, words, [padded(r) for r in records])


def test_padding_to_the_longest_is_refused_and_buckets_are_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"another shape .*PaddedBuckets.*microbatches\(1\)"):
        released_sum(TEXTS, padding, words)
    for records in (TEXTS, [*TEXTS, LONG]):
        found = released_sum(PaddedBuckets(records, EDGES, pad={"x": 0}), padding, words)
        assert_alone(found, words, [padded(r) for r in records])
        assert_alone(released_sum(records, padding, words, size=1), words, [(r["x"], r["y"]) for r in records])


def test_a_transform_that_pads_is_refused_and_one_shape_is_the_remedy() -> None:
    def pads(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": pad_sequence(rows["x"], batch_first=True), "y": rows["y"]}

    def pads_to_one_length(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": torch.stack([nn.functional.pad(x, (0, 32 - len(x))) for x in rows["x"]]), "y": rows["y"]}

    with pytest.raises(ValueError, match=r"the field 'x' has another shape .*pad each record to one length"):
        released_sum(Table(TEXTS, pads), None, words)
    found = released_sum(Table(TEXTS, pads_to_one_length), None, words)
    assert_alone(found, words, [(nn.functional.pad(r["x"], (0, 32 - len(r["x"]))), r["y"]) for r in TEXTS])


def test_time_first_is_refused_and_the_record_on_the_first_axis_is_the_remedy() -> None:
    def time_first(records: list[Any]) -> tuple[Tensor, Tensor]:
        return pad_sequence([r["x"] for r in records]), torch.tensor([r["y"] for r in records])

    equal = texts((5, 5, 5))
    refusal = r"the field 0 of one record the shape \(5, 1\).*first axis.*microbatches\(1\)"
    with pytest.raises(ValueError, match=refusal):
        released_sum(equal, time_first, words)
    found = released_sum(equal, lambda records: (time_first(records)[0].mT, time_first(records)[1]), words)
    assert_alone(found, words, [(r["x"], r["y"]) for r in equal])


def test_graphs_come_one_at_a_time() -> None:
    """A graph has its nodes on the first axis; the loop gives it an axis of examples."""
    graphs = [(X[k : k + n], torch.tensor(k % 3)) for k, n in enumerate((2, 5, 3, 1))]

    def batched(records: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.cat([nodes for nodes, _ in records]), torch.stack([y for _, y in records])

    with pytest.raises(ValueError, match=r"the field 0 of one record the shape \(2, 6\).*graphs"):
        records_of(graphs, batched).gather(np.arange(3))
    found = released_sum(graphs, batched, size=1, loss=of_graph, as_batch=lambda graph: (graph[0][None], graph[1]))
    assert_alone(found, net, [(nodes, int(y)) for nodes, y in graphs], loss=of_graph)


def test_a_transform_that_makes_several_records_of_one_is_refused() -> None:
    def halves(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"x": [half for x in rows["x"] for half in x.view(2, 3)], "y": [y for y in rows["y"] for _ in range(2)]}

    with pytest.raises(ValueError, match="makes 2 records of the one with index 0"):
        released_sum(Table(RECORDS, halves))
