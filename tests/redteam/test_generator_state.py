"""The state of random generators after a step does not tell how often they were used in it."""

from __future__ import annotations

import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import MappingProxyType, MethodType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from noisette.clipping.shared_numbers import SharedNumbers
from torch import Tensor, nn
from torch.utils.data import Dataset

import noisette
from noisette.capture.python_state import PythonState
from noisette.core.trace import NotVectorizedError
from published_runs import CLASSES, FEATURES, SIZE, STEPS, X, differences, known_release, published, train


@pytest.fixture(autouse=True)
def _known_release(monkeypatch: pytest.MonkeyPatch):
    with known_release(monkeypatch):
        yield


class Draws(nn.Module):
    """Calls ``draw(self, x)`` in each forward pass."""

    def __init__(self, draw: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(FEATURES, CLASSES), draw
        self.own = torch.Generator().manual_seed(1)
        self.held: Any = None
        self.of_numpy, self.older, self.of_python = np.random.default_rng(2), np.random.RandomState(3), random.Random(4)

    def forward(self, x: Tensor) -> Tensor:
        self.draw(self, x)
        return self.layer(x)


DRAWS = {
    "dropout": lambda m, x: F.dropout(x),
    "torch": lambda m, x: torch.rand(3),
    "torch, once for each example": lambda m, x: [torch.rand(1) for _ in x],
    "torch, seeded by a record": lambda m, x: torch.manual_seed(int(x.abs().sum() * 1000)),
    "NumPy": lambda m, x: np.random.rand(len(x)),
    "Python": lambda m, x: random.random(),
    "Python, seeded by a record": lambda m, x: random.seed(float(x.sum())),
    "a generator of the model": lambda m, x: torch.rand(len(x), generator=m.own),
    "a generator of NumPy": lambda m, x: m.of_numpy.random(len(x)),
    "an older one": lambda m, x: m.older.rand(len(x)),
    "one of Python": lambda m, x: m.of_python.random(),
}


def states(model: Draws) -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "NumPy": str(np.random.get_state()),
        "Python": str(random.getstate()),
        "own": model.own.get_state(),
        "of NumPy": str(model.of_numpy.bit_generator.state),
        "older": str(model.older.get_state()),
        "of Python": str(model.of_python.getstate()),
    }


NONE = {"records": 0}


def after_each_step(draw: Callable[[Any, Tensor], object], **change: int) -> list[dict[str, Any]]:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    model, found = Draws(draw), list[dict[str, Any]]()
    train(model, between=lambda step: found.append(states(model) | published(model)), **change)
    return found


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_no_generator_tells_the_batch(draw: Callable[[Any, Tensor], object]) -> None:
    first, *others = [after_each_step(draw, **change) for change in ({}, {"records": SIZE - 1}, {"size": 1}, NONE)]
    assert len(first) == STEPS
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert differences(one, two) == []


def test_masks_differ_from_step_to_step_and_between_microbatches() -> None:
    masks: list[tuple[float, ...]] = []
    model = Draws(lambda m, x: masks.append(tuple(F.dropout(torch.ones(40)).tolist())))
    train(model, size=3)
    assert len(set(masks)) == len(masks) == 12


def test_who_knows_the_seeds_does_not_know_the_masks() -> None:
    """If others could compute masks and views, one record more would move those of all records behind it."""
    drawn: list[str] = []
    unseeded = [draw for name, draw in DRAWS.items() if "seeded" not in name]
    for _ in range(2):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        train(Draws(lambda m, x: drawn.append(str([draw(m, x) for draw in unseeded]))))
    assert len(set(drawn)) == len(drawn)


def test_a_seed_still_repeats_what_is_drawn_between_steps() -> None:
    first, second = ([state["torch"] for state in after_each_step(DRAWS["dropout"])] for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def run_of(model: nn.Module, data: Tensor) -> noisette.PrivateRun:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip = noisette.PerExampleClip(model, 1.0, capture="eager")
    declared = {"sampling_rate": 1.0, "expected_batch_size": 8, "noise_multiplier": 1.0}
    return noisette.privatize(clip, optimizer, (data,), **declared, steps=STEPS, accountant=noisette.RdpAccountant())


def test_a_loop_that_seeds_each_microbatch_has_secret_masks_all_the_same() -> None:
    seeds: set[int] = set()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        seeds.add(torch.initial_seed())
        return model(x).sum()

    model = nn.Linear(FEATURES, 1)
    with run_of(model, X) as run:
        for batch in run.batches():
            for (x,) in batch.microbatches(4):
                torch.manual_seed(5)
                run.accumulate(loss, x)
            run.optimizer.step()
    assert seeds
    assert 5 not in seeds


def test_the_release_of_another_run_within_a_batch_leaves_secret_seeds() -> None:
    seeds, between = set[int](), set[int]()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        seeds.add(torch.initial_seed())
        return model(x).sum()

    with run_of(nn.Linear(FEATURES, 1), X) as one, run_of(nn.Linear(FEATURES, 1), X) as other:
        for batch, second in zip(one.batches(), other.batches(), strict=True):
            for (x,) in batch.microbatches(4):
                one.accumulate(loss, x)
            for k, (x,) in enumerate(second.microbatches(4)):
                if k == 1:
                    one.optimizer.step()
                    between.add(torch.initial_seed())
                other.accumulate(loss, x)
            other.optimizer.step()
    assert len(between) == STEPS
    assert not between & seeds


def take_by_backward(
    model: nn.Module, seeds: Callable[[], object], data: Any = (X,), ahead: int = 1, size: int = 4
) -> None:
    clip = noisette.PerExampleClip(model, 1.0)
    declared = {"sampling_rate": 1.0, "expected_batch_size": 8, "noise_multiplier": 1.0, "separability": "asserted"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"steps": 2, "accountant": noisette.RdpAccountant()}
    with noisette.privatize(clip, optimizer, data, **declared, **settings) as run:
        for batch in run.batches(ahead=ahead):
            for (x,) in batch.microbatches(size):
                seeds()
                run.backward(model(x).sum(1))
            optimizer.step()


def test_backward_warns_of_masks_by_a_known_seed() -> None:
    def masked() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 3), nn.Dropout())

    take_by_backward(masked(), lambda: None)
    with pytest.warns(UserWarning, match="was seeded between"):
        take_by_backward(masked(), lambda: torch.manual_seed(5))
    with torch.random.fork_rng():
        take_by_backward(nn.Linear(FEATURES, 1), lambda: torch.manual_seed(5))  # it gives no numbers


class Seeding(Dataset[tuple[Tensor]]):
    """Seeds all global generators for each of its records."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor]:
        torch.manual_seed(index)
        np.random.seed(index)
        random.seed(index)
        return (X[index] + torch.rand(()),)


def test_a_data_set_that_seeds_generators_leaves_secret_ones() -> None:
    numbers = list[tuple[float, float, float]]()
    for _ in range(2):
        take_by_backward(
            nn.Linear(FEATURES, 1),
            lambda: numbers.append((torch.rand(()).item(), np.random.rand(), random.random())),
            Seeding(),
            ahead=0,
        )
    assert numbers
    assert all(len(set(of_one)) == len(numbers) for of_one in zip(*numbers, strict=True))


def test_numbers_are_secret_however_the_loop_seeds_generators() -> None:
    numbers: list[tuple[float, float]] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        numbers.append((np.random.rand(), random.random()))
        return model(x).sum()

    with run_of(nn.Linear(FEATURES, 1), X) as run:
        for batch in run.batches():
            (x,) = next(iter(batch.microbatches(len(batch.indices))))
            for seed in (np.random.seed, random.seed):
                seed(5)
            with suppress(noisette.PrivacyError), warnings.catch_warnings(action="ignore"):
                run.accumulate(loss, x)
            break
    np.random.seed(5)
    random.seed(5)
    assert (np.random.rand(), random.random()) not in numbers
    assert numbers


class Views(Dataset[tuple[Tensor]]):
    """Records that take a while to read, and from the first one on draw a number."""

    def __init__(self, first: int) -> None:
        self.first, self.drawn = first, list[float]()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor]:
        time.sleep(0.02)
        if index >= self.first:
            self.drawn.append(torch.rand((), dtype=torch.float64).item())
        return (X[index],)


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return self.layer(x)


def loss_with(own: np.random.Generator) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda model, x: model(x).sum() * (1 + own.random())


def scaled(own: np.random.Generator, model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sum() * (1 + own.random())


class LossWith:
    def __init__(self, own: np.random.Generator) -> None:
        self.own = own

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        return scaled(self.own, model, x)

    def method(self, model: nn.Module, x: Tensor) -> Tensor:
        return scaled(self.own, model, x)


LOSSES_OF_ONE_CODE = {
    "closures": loss_with,
    "partial": lambda own: partial(scaled, own),
    "objects": LossWith,
    "methods": lambda own: LossWith(own).method,
    "defaults": lambda own: lambda model, x, own=own: scaled(own, model, x),
}


@pytest.mark.parametrize("make", LOSSES_OF_ONE_CODE.values(), ids=LOSSES_OF_ONE_CODE)
def test_losses_of_one_code_have_generators_of_their_own(make: Callable[[Any], Callable[..., Tensor]]) -> None:
    """The first loss draws nothing, so that the run does not go record by record because of it."""
    watch = SharedNumbers(nn.Linear(FEATURES, 1))
    first, second = (make(np.random.default_rng(seed)) for seed in (1, 2))
    with watch.refused(first):
        pass
    with pytest.raises(NotVectorizedError), watch.refused(second):
        second(nn.Linear(FEATURES, 1), X[:2])


def test_a_loss_made_anew_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, model = SharedNumbers(nn.Linear(FEATURES, 1)), nn.Linear(FEATURES, 1)
    looked_through = list[object]()
    monkeypatch.setattr(PythonState, "of", lambda self, loss: looked_through.append(loss))
    for step in range(5):
        weight = torch.ones(3) * step
        with watch.refused(lambda m, x, w=weight, k=step: model(x).sum() * w.sum() * k):
            pass
    assert len(looked_through) == 2, "before and after the first call"


def test_a_generator_of_torch_that_a_model_makes_is_not_taken_for_one_of_numpy() -> None:
    def makes_its_own(model: Draws, x: Tensor) -> Tensor:
        if model.held is None:
            model.held = torch.Generator()
        return model(x).sum()

    with run_of(Draws(lambda m, x: None), X) as run:
        for batch in run.batches():
            (x,) = next(iter(batch.microbatches(len(batch.indices))))
            run.accumulate(makes_its_own, x)
            return


class Helper:
    def __init__(self, own: Any) -> None:
        self.own = [own]

    def draw(self) -> float:
        return self.own[0].random()


def with_default(own: Any) -> Callable[[], float]:
    return lambda own=own: own.random()


class OfAnotherPackage(Helper):
    __module__ = "views.images"
    __call__ = Helper.draw


class Part(nn.Module):
    """No part of the model: only a method of it, or what calls it, is held there."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = [own]

    def forward(self) -> float:
        return self.own[0].random()


class Settings(NamedTuple):
    own: Any


class WithSettings:
    def __init__(self, own: Any) -> None:
        self.settings = Settings(own)

    def draw(self) -> float:
        return self.settings.own.random()


class AmongMany(Helper):
    def __init__(self, own: Any) -> None:
        self.others = [[k] for k in range(3000)]
        super().__init__(own)


class OwnPartial(partial):  # type: ignore[type-arg]
    pass


class WithSlots:
    __slots__ = ("own",)

    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(self) -> float:
        return self.own.random()


class ManyEntries(dict[int, int]):
    __module__ = "views.images"

    def __init__(self, own: Any) -> None:
        super().__init__((k, k) for k in range(20_000))
        self.own = own

    def __call__(self) -> float:
        return self.own.random()


def patched(own: Any) -> Callable[[], float]:
    """A function that is made a method of an object, as those who exchange ``forward`` do."""
    return MethodType(lambda of_object: own.random(), "an object")


def kept(own: Any) -> Callable[[], float]:
    generator = cache(lambda: own)
    generator()
    return lambda: generator().random()


def in_objects(own: Any) -> Callable[[], float]:
    objects = np.array([None, own], dtype=object)
    return lambda: objects[1].random()


HOLDERS = {
    "bits of NumPy": lambda own: own.bit_generator.random_raw,
    "a method made of a function": patched,
    "a function that keeps its results": kept,
    "a view of a dictionary": lambda own: (lambda view: lambda: view["own"].random())(MappingProxyType({"own": own})),
    "an array of objects": in_objects,
    "an object with slots": WithSlots,
    "a large dictionary of another package": ManyEntries,
    "a function of NumPy's": lambda own: partial(np.frompyfunc(lambda scale: own.random(), 1, 1), 1.0),
    "what a dictionary makes entries with": lambda own: (lambda made: lambda: made[len(made)])(defaultdict(own.random)),
    "an object with many others": lambda own: AmongMany(own).draw,
    "a partial function of a class of the user's": lambda own: OwnPartial(lambda own: own.random(), own),
    "a method of a module that is no part": lambda own: Part(own).forward,
    "a partial function of such a module": lambda own: partial(lambda part: part(), Part(own)),
    "a closure over such a module": lambda own: (lambda part: lambda: part())(Part(own)),
    "a named tuple behind a method": lambda own: WithSettings(own).draw,
    "an object of another package": OfAnotherPackage,
    "a method": lambda own: own.random,
    "a partial function": lambda own: partial(own.random),
    "a closure": lambda own: lambda: own.random(),
    "a method of an object": lambda own: Helper(own).draw,
    "an object in a closure": lambda own: (lambda helper: lambda: helper.draw())(Helper(own)),
    "a default": with_default,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_generators_that_a_model_holds_indirectly_have_secret_seeds(hold: Callable[[Any], Any]) -> None:
    drawn: list[float] = []
    for _ in range(2):
        own = np.random.default_rng(1)
        model = Draws(lambda m, x: drawn.append(m.held()))
        model.held = hold(own)
        train(model)
    assert len(set(drawn)) == len(drawn) > 2


_OWN = {"NumPy": np.random.default_rng(1), "older": np.random.RandomState(1), "Python": random.Random(1)}
_DRAW: dict[str, Callable[[], Any]] = {f"{name}, held": generator.random for name, generator in _OWN.items()}
_DRAW["behind np.vectorize"] = partial(np.vectorize(lambda scale: scale * _OWN["NumPy"].random()), 1.0)
_DRAW["behind np.frompyfunc"] = partial(np.frompyfunc(lambda scale: scale * _OWN["NumPy"].random(), 1, 1), 1.0)
_DRAW["kept by a function"] = kept(_OWN["NumPy"])
_DRAW["among objects"] = in_objects(_OWN["Python"])
_DRAW["one of many"] = (lambda many: lambda: many[0].random())([_OWN["older"], *range(5000)])
_DRAW["bits of NumPy"] = (lambda bits: lambda: bits.random_raw() / 2**64)(np.random.PCG64(1))


@pytest.mark.parametrize("draw", [random.random, np.random.rand, *_DRAW.values()])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
def test_records_of_a_microbatch_share_no_number(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[[], float], columns: bool
) -> None:
    """Which ones share it would depend on how many come before, so one record more would move all behind it."""
    rows = torch.eye(SIZE, dtype=torch.float64)
    model = nn.Linear(SIZE, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = noisette.privatize(
        noisette.PerExampleClip(model, 10.0),
        optimizer,
        (rows,) if columns else [(row,) for row in rows],
        sampling_rate=1.0,
        expected_batch_size=1,
        noise_multiplier=1.0,
        steps=1,
        accountant=noisette.RdpAccountant(),
    )
    sums: list[Tensor] = []
    pop_sums = run.bound.pop_sums

    def popped() -> Any:
        [found] = pop_sums()
        sums.append(found.grads[0].flatten().clone())
        return [found]

    monkeypatch.setattr(run.bound, "pop_sums", popped)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() * (1 + draw())

    for batch in run.batches():
        for (x,) in batch.microbatches(4):
            run.accumulate(loss, x)
        optimizer.step()
    run.close()
    assert len(set(sums[0].tolist())) == SIZE


def makes_its_own(model: Draws, x: Tensor) -> Tensor:
    if model.held is None:
        model.held = np.random.default_rng(1)
    return model(x).sum() * (1 + model.held.random())


def draws_from_the_model(model: Draws, x: Tensor) -> Tensor:
    return model(x).sum() * (1 + model.of_numpy.random())


@pytest.mark.parametrize("loss", [draws_from_the_model, makes_its_own])
def test_records_share_no_number_of_a_generator_in_the_model(loss: Callable[[Any, Tensor], Tensor]) -> None:
    with run_of(Draws(lambda m, x: None), X) as run:
        for batch in run.batches():
            (x,) = next(iter(batch.microbatches(len(batch.indices))))
            with pytest.warns(noisette.OneByOneWarning, match="share the numbers"):
                run.accumulate(loss, x)
            return
