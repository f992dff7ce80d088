"""Branches on values: taken for all examples at once where they agree, apart where not, by shared random numbers."""

import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.nn import functional as F

from engine_check import Watched
from model_cases import Forward
from noisette import OneByOneWarning, PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from oracle import example_gradients
from small_loop import clipped_by, square, start, take_steps


def rows(b: int = 6) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(b, 4, dtype=torch.float64)


def net(forward: Callable[..., Tensor]) -> Forward:
    torch.manual_seed(1)
    return Forward(forward, f=nn.Linear(4, 4).double(), mask=torch.ones(1, 4, dtype=torch.bool))


def summed(model: nn.Module, *parts: Tensor, engine: Engine | None = None, capture: str = "eager") -> Tensor:
    return clipped_by(model, 0.5, square, *[(x,) for x in parts], engine=engine, capture=capture)


def guarded(m: Forward, x: Tensor) -> Tensor:
    h = m.f(x)
    if not torch.isfinite(h).all():
        h = h.clamp(-1e4, 1e4)
    return h


def asserted(m: Forward, x: Tensor) -> Tensor:
    assert x.max() < 1e3
    assert not torch.equal(x, x + 1)
    return m.f(x)


def masked(m: Forward, x: Tensor) -> Tensor:
    keep = (x < 1e3) & m.mask
    return m.f(x) if keep.all() else m.f(x * keep)


def listed(m: Forward, x: Tensor) -> Tensor:
    start, end = ((x < 1e3).sum(1) * 0 + torch.tensor([1, 3])).tolist()
    return m.f(x)[:, start:end]


size: Callable[[Tensor], Tensor] = lambda x: (x < 1e3).sum() - 1  # noqa: E731  # 3, for which operations ask


def cut(m: Forward, x: Tensor) -> Tensor:
    out = x.new_zeros(1, 4)
    out[:, : size(x)] = m.f(x)[:, 1:]
    return out


def hidden(m: Forward, x: Tensor) -> Tensor:
    """Autograd does not see the write, and goes on with what it finds."""
    h = m.f(x).exp()
    h.data.mul_(2)
    return h


def again(m: Forward, x: Tensor) -> Tensor:
    return checkpointing.checkpoint(lambda x: guarded(m, x).tanh(), x, use_reentrant=False)


def estimated(m: Forward, x: Tensor) -> Tensor:
    """A straight-through estimator where gradients are wanted, and other properties that are hidden."""
    h = m.f(x)
    assert (h.is_leaf, x.is_leaf, x.requires_grad, x.grad_fn) == (False, True, False, None)
    before = h._version
    h.mul_(2)
    assert h._version == before + 1
    q = h.round()
    return h + (q - h).detach() if h.requires_grad else q


FORMS = [
    *(guarded, asserted, masked, listed, cut, hidden, again, estimated),
    lambda m, x: m.f(x)[:, : int((x < 1e3).sum())] * (x > 1e3).sum().add(2).item(),
    lambda m, x: m.f(x) if torch.allclose(x, x + 1e-12) else m.f(-x),
    lambda m, x: m.f(x)[:, len(torch.unique_consecutive((x < 1e3) * x.new_tensor([1, 1, 2, 1]))) :],
    lambda m, x: m.f(x + torch.zeros_like(m.f.bias, requires_grad=True).requires_grad_()),
    lambda m, x: torch.narrow(input=m.f(x), dim=1, start=size(x) - 2, length=size(x)) + x.new_ones(size(x)),
    lambda m, x: m.f(x)[:, torch.arange(size(x))] + torch.zeros(1, size(x)),
    lambda m, x: m.f(x)[:, : size(x)] * torch.arange(4)[: size(x)] + x @ m.f.weight[: size(x)].T,
    lambda m, x: F.interpolate(m.f(x)[None], size=size(x)) ** torch.tensor([size(x), 2, 1]),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=["one pass", "two passes"])
def test_examples_that_agree_are_computed_at_once(form: Callable[..., Tensor], engine: Engine) -> None:
    x = rows()
    truth = example_gradients(net(form), square, (x,)).clipped(0.5).vector
    torch.testing.assert_close(summed(net(form), x[:4], x[4:], engine=engine), truth, rtol=1e-9, atol=1e-12)


DIFFER: list[Callable[..., Tensor]] = [
    lambda m, x: m.f(x) if x.sum() > 0 else m.f(-2 * x).exp(),
    lambda m, x: (m.f(x) if x[0, 0] > 0 else x + m.f(x)) * (2.0 if bool(x[0, 1] > 0) else 3.0),
    lambda m, x: m.f(x)[:, : int((x > 0).sum())],
    lambda m, x: torch.cond(x.sum() > 0, m.f, lambda x: m.f(-2 * x).exp(), (x,)),
    again,
]


@pytest.mark.parametrize("form", DIFFER)
@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=["one pass", "two passes"])
def test_examples_that_disagree_are_computed_apart(form: Callable[..., Tensor], engine: Engine) -> None:
    """Those that agree together; the next microbatch is computed at once again."""
    x, calls = rows(12), []
    x[2] = 1e9

    def noted(m: Forward, x: Tensor) -> Tensor:
        calls.append(1)
        return form(m, x)

    truth = example_gradients(net(form), square, (x,)).clipped(0.5).vector
    torch.testing.assert_close(summed(net(noted), x, engine=engine), truth, rtol=1e-6, atol=1e-9)
    if form is DIFFER[0]:
        calls.clear()
        summed(net(noted), x[(x.sum(1) > 0)])
        assert len(calls) == 1


def test_a_size_that_an_earlier_call_has_left_is_refused() -> None:
    kept: list[Tensor] = []
    model = net(lambda m, x: (kept.append(size(x)), m.f(x)[:, : kept[0]])[1])
    with pytest.raises(PrivacyError, match="that an earlier call has computed"):
        summed(model, rows(), rows())


def test_where_each_of_many_branches_divides_the_examples_each_is_computed_alone() -> None:
    x, calls = 2.0 * torch.cartesian_prod(*[torch.arange(2)] * 4).double() - 1, []

    def forward(m: Forward, x: Tensor) -> Tensor:
        calls.append(1)
        for k in range(4):
            x = m.f(x) if x[0, k] > 0 else x - m.f(x).tanh()
        return x

    truth = example_gradients(net(forward), square, (x,)).clipped(0.5).vector
    clip = PerExampleClip(net(forward), 0.5, capture="eager")
    with pytest.warns(OneByOneWarning, match="as a Python number"):
        clip.accumulate(square, x)
    found = torch.cat([g.flatten() for g in clip.pop_sums()[0].grads])
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)
    calls.clear()
    clip.accumulate(square, x)
    assert len(calls) <= 1 + len(x)


@pytest.mark.parametrize("capture", ["graph", "auto"])
@pytest.mark.filterwarnings("ignore::noisette.capture.captured.CaptureWarning")
def test_a_graph_holds_no_answer_of_another_batch(capture: str) -> None:
    """Also where rows are added to a microbatch, which stand for no example: 17 are computed as 18."""
    x, clip_of = rows(17), net(guarded)
    other = x.clone()
    other[3] = 1e9
    parts = [x, x, x, other, x[:5], other]
    truth = sum(example_gradients(net(guarded), square, (part,)).clipped(0.5).vector for part in parts)
    torch.testing.assert_close(summed(clip_of, *parts, capture=capture), truth, rtol=1e-9, atol=1e-12)


def test_a_number_of_python_in_a_later_branch_is_that_of_the_batch() -> None:
    """Otherwise it would be the same for those that go this way together."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        drawn.append(random.random() if x[0, 0] > 1e3 else 1.0)
        return m.f(x) * drawn[-1]

    drawn: list[float] = []
    clip, x = PerExampleClip(net(forward), 1.0, capture="eager"), rows()
    clip.accumulate(square, x)
    x[:, 0], before = 1e4, random.getstate()
    clip.accumulate(square, x[:4])
    clip.accumulate(square, x[4:])
    assert random.getstate() == before
    assert len(drawn) == 3
    assert len(set(drawn)) == 2


def dropped(m: Forward, x: Tensor, draw: Callable[[], Tensor] = lambda: torch.rand([])) -> Tensor:
    for _ in range(12):
        x = x if draw() < 0.5 else x + m.f(x).tanh()
    return x + 0 * m.f(x)


def dropped_otherwise(m: Forward, x: Tensor) -> Tensor:
    for _ in range(12):
        again = lambda x: x + m.f(x).tanh() * random.random()  # noqa: E731
        x = x if random.random() < np.random.rand() else checkpointing.checkpoint(again, x, use_reentrant=False)
    return x + 0 * m.f(x)


def choices(form: Callable[..., Tensor], *parts: Sequence[int], seed: int, engine: Engine | None = None) -> Tensor:
    model, x, found = net(form), rows(8), []
    for part in parts:
        clip = PerExampleClip(model, 1e6, engine=engine, capture="eager")
        clip.begin_batch(1.0, seed)
        torch.rand(len(found))  # other numbers are at other places
        clip.accumulate(square, x[list(part)])
        clip.end_batch()
        [total] = clip.pop_sums()
        found.append(torch.cat([g.double().flatten() for g in total.grads]))
    return torch.stack(found).sum(0)


@pytest.mark.parametrize("form", [dropped, partial(dropped, draw=lambda: torch.empty(1).uniform_()), dropped_otherwise])
def test_a_random_branch_is_the_same_for_all_records_of_a_batch(form: Callable[..., Tensor]) -> None:
    """In whatever microbatches they are, at once or one by one; another batch draws anew."""
    whole = choices(form, range(8), seed=5)
    for parts in ([[0, 1, 2], [3, 4, 5, 6, 7]], [[k] for k in range(8)]):
        torch.testing.assert_close(choices(form, *parts, seed=5), whole, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(choices(form, range(8), seed=5, engine=PerExampleLoop()), whole, rtol=1e-9, atol=1e-12)
    assert len({round(float(choices(form, range(8), seed=seed).norm()), 6) for seed in range(12)}) > 4


@pytest.mark.filterwarnings("ignore::noisette.capture.captured.CaptureWarning")
def test_a_graph_holds_no_number_of_python() -> None:
    clips = [PerExampleClip(net(dropped_otherwise), 1e6, capture=capture) for capture in ("graph", "eager")]
    for seed in range(5):
        for clip in clips:
            clip.begin_batch(1.0, seed)
            clip.accumulate(square, rows())
            clip.end_batch()
        of_graph, eager = [clip.pop_sums()[0].grads[0] for clip in clips]
        torch.testing.assert_close(of_graph, eager, rtol=1e-9, atol=1e-12)


def test_layers_are_dropped_as_often_as_they_should_be() -> None:
    found = []
    model = net(lambda m, x: m.f(x) if found.append(bool(torch.rand([]) < 0.25)) or found[-1] else m.f(-x))
    clip = PerExampleClip(model, 1.0, capture="eager")
    for seed in range(400):
        clip.begin_batch(1.0, seed)
        clip.accumulate(square, rows(2))
        clip.end_batch()
    assert 60 < sum(found) < 140


def test_what_decides_no_branch_is_drawn_for_each_example() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        t = torch.rand([], dtype=x.dtype)
        if torch.rand([]) < 0.5:
            x = torch.zeros_like(x)
        return m.f.bias * t + 0 * m.f(x)

    watched = Watched(BookKeeping())
    summed(net(forward), rows(), engine=watched)
    assert len(watched.norms[0].unique()) == 6


def test_a_run_gives_all_microbatches_one_draw() -> None:
    seen: list[bool] = []
    model = net(lambda m, x: m.f(x) if seen.append(bool(torch.rand([]) < 0.5)) or seen[-1] else 2 * m.f(x))
    of_steps, clip = [], {"max_grad_norm": 1.0, "capture": "eager"}
    with start(model, (rows(9),), clip=clip, sampling_rate=1.0, expected_batch_size=9, steps=12) as run:
        while run.steps_left:
            seen.clear()
            take_steps(run, square, size=4, steps=1)
            of_steps.append(set(seen))
    assert all(len(one) == 1 for one in of_steps)
    assert len(set(map(frozenset, of_steps))) == 2
