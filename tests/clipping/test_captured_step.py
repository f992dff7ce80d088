"""The captured step gives the sums of the loop over single examples, whatever comes in between."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captured_check import graphs_of
from model_cases import Forward
from noisette import AdaptiveClip, AutomaticClipping, FlatClipping, PerExampleClip, PerLayerClipping, PrivacyError
from noisette.capture.captured import CaptureWarning
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core.clip import ClippingRule, Engine
from oracle import clipped_sum
from small_loop import loss as cross_entropy

C = 0.5


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(b: int = 9) -> tuple[Tensor, Tensor]:
    return torch.randn(b, 5, dtype=torch.float64), torch.randint(0, 4, (b,))


def flat(clip: PerExampleClip) -> Tensor:
    return torch.cat([g.flatten() for total in clip.pop_sums() for g in total.grads])


def check(clip: PerExampleClip, *given: Tensor, loss: Callable[..., Tensor] = cross_entropy, bound: float = C) -> None:
    """A call gives the sum of single examples."""
    clip.accumulate(loss, *given)
    truth = clipped_sum(clip.model, loss, given, bound).vector
    torch.testing.assert_close(flat(clip), truth, rtol=1e-9, atol=1e-13)


def graph_calls(clip: PerExampleClip) -> int:
    return sum(timed.calls for timed in graphs_of(clip))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 1e30])
@pytest.mark.parametrize("place", [0, 4])
def test_a_record_that_is_no_good_is_as_in_the_loop(bad: float, place: int) -> None:
    """The first row is the one that is repeated up to the size of the graph."""
    model = mlp()
    clip, eager = (PerExampleClip(model, C, capture=how) for how in ("graph", "eager"))
    for k in range(8):
        x, y = batch(17)
        if k == 5:  # the fifth call of the graph, which is not compared
            x[place, 2] = bad
        clip.accumulate(cross_entropy, x, y)
        eager.accumulate(cross_entropy, x, y)
        found, expected = flat(clip), flat(eager)
        if k == 5 and not abs(bad) < 1e200:
            assert torch.equal(found, expected)  # the eager engine has computed it
        else:
            torch.testing.assert_close(
                found, clipped_sum(model, cross_entropy, (x, y), C).vector, rtol=1e-10, atol=1e-13
            )
    assert graph_calls(clip) == 7
    assert not clip.capture_problems


@pytest.mark.parametrize("b", [1, 7, 19, 33])
def test_repeated_rows_count_for_nothing(b: int) -> None:
    clip = PerExampleClip(mlp(), C, capture="graph")
    for _ in range(3):
        check(clip, *batch(b))
    assert graph_calls(clip) == 2


RULES = [AdaptiveClip(0.1), AutomaticClipping(C), FlatClipping(C), PerLayerClipping(C)]


@pytest.mark.parametrize(("rule", "engine"), list(zip(RULES, [BookKeeping(), ReweightGP()] * 2, strict=True)))
def test_every_rule_is_captured_once_though_it_makes_groups_anew(rule: ClippingRule, engine: Engine) -> None:
    model = mlp()
    rules = copy.deepcopy(rule), copy.deepcopy(rule)
    clips = [
        PerExampleClip(model, clipping=each, engine=engine, capture=how)
        for each, how in zip(rules, ("graph", "eager"), strict=True)
    ]
    for _ in range(6):
        x, y = batch()
        found: list[Sequence[Tensor]] = []
        for clip in clips:
            clip.accumulate(cross_entropy, x, y)
            sums = clip.pop_sums()
            found.append([g for total in sums for g in total.grads])
            for total in sums:
                for p, g in zip(total.params, total.grads, strict=True):
                    p.grad = g / 9 if p.dim() == 0 else None
            clip.after_step()  # the bound of an adaptive rule changes
        torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)
    assert graph_calls(clips[0]) == 5


def test_a_number_that_changes_in_every_step_makes_it_eager_without_a_warning() -> None:
    clip = PerExampleClip(mlp(), C, capture="graph")
    for k in range(40):
        check(clip, *batch(), loss=lambda model, x, y, k=k: (1 + k) * cross_entropy(model, x, y))
    assert graph_calls(clip) == 0
    assert len(clip._captured._kinds) <= 16


def test_a_number_that_changes_now_and_then_has_few_graphs() -> None:
    clip = PerExampleClip(mlp(), C, capture="graph")

    def three_times(scale: float) -> None:
        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return scale * cross_entropy(model, x, y)

        for _ in range(3):
            check(clip, *batch(), loss=loss)

    for k in range(17):
        three_times(1.0 + k)
    assert graph_calls(clip) == 32  # of sixteen kinds


def test_a_loss_that_writes_into_its_arguments_writes_once() -> None:
    def scales(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.div_(255)), y)

    model = mlp()
    clip = PerExampleClip(model, C, capture="graph")
    for k in range(4):
        x, y = batch()
        pixels = 255 * x
        clip.accumulate(scales, pixels, y)
        truth = clipped_sum(model, cross_entropy, (x, y), C).vector
        torch.testing.assert_close(flat(clip), truth, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(pixels, x, msg=f"call {k}")
    assert clip.capture_problems == ("the loss writes into its arguments",)


def test_class_weights_of_the_batch_are_refused_as_eagerly() -> None:
    clip = PerExampleClip(mlp(), C, capture="graph")
    weights = torch.ones(4, dtype=torch.float64)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, weight=weights, reduction="sum")

    for _ in range(6):
        clip.accumulate(loss, *batch())
    assert graph_calls(clip) == 5
    weights.mul_(2)
    with pytest.raises(PrivacyError, match="written to since the first call"):
        clip.accumulate(loss, *batch())
    weights = 2 * torch.ones(4, dtype=torch.float64)
    with pytest.raises(PrivacyError, match="neither an argument nor part of the model"):
        clip.accumulate(loss, *batch())


def test_a_graph_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from noisette.capture.graph import Graph

    whole = Graph.__call__

    def wrong(self: Graph, *given: Any) -> list[Tensor]:
        first, *others = whole(self, *given)
        return [first * 1.001, *others]

    clip = PerExampleClip(mlp(), 1e-4, capture="graph")  # sums are small beside the norms
    check(clip, *batch(), bound=1e-4)
    monkeypatch.setattr(Graph, "__call__", wrong)
    x, y = batch()
    with pytest.warns(CaptureWarning, match="differ by .* of their norm"):
        check(clip, x, y, bound=1e-4)
    check(clip, x, y, bound=1e-4)
    assert len(clip.capture_problems) == 1
    assert clip.captured_operations == 0  # the graph is not kept


def test_one_tensor_that_a_compiler_gives_for_two_sums_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from noisette.capture.graph import Graph

    whole = Graph.__call__

    def shared(self: Graph, *given: Any) -> list[Tensor]:
        one, _, *others = whole(self, *given)
        return [one, one, *others]

    monkeypatch.setattr(Graph, "__call__", shared)
    one, other = (nn.Parameter(torch.zeros(5).double()) for _ in range(2))  # with equal gradients
    model = Forward(lambda m, x: x @ (m.one + m.other).unsqueeze(1), one=one, other=other)
    clip = PerExampleClip(model, C, capture="graph")
    for _ in range(5):  # the first two calls of a graph are compared, and give the sums of the step itself
        clip.accumulate(lambda model, x, y: model(x).sum(), *batch())
        [total] = clip.pop_sums()
        assert total.grads[0].data_ptr() != total.grads[1].data_ptr()
        assert torch.equal(*total.grads)


def failing_compiler(*_: object, **__: object) -> None:
    raise OSError("no space left")


def test_what_cannot_be_compiled_runs_as_a_graph_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.standalone_compile", failing_compiler)
    clip = PerExampleClip(mlp(), C, capture="compiled")
    check(clip, *batch())
    with pytest.warns(CaptureWarning, match="the step runs uncompiled: "):
        check(clip, *batch())
    for _ in range(3):
        check(clip, *batch())
    assert graph_calls(clip) == 4


@pytest.mark.parametrize("cut", [lambda x: x, lambda x: x[:, :, 1:-1], lambda x: x.mT, lambda x: x.movedim(1, -1)])
def test_slices_of_a_batch_are_read_where_they_begin(cut: Callable[[Tensor], Tensor]) -> None:
    """A convolution reads windows of pixels by the place in memory; calls 3, 5, 6 and 7 of a graph are not compared."""
    images, y = cut(torch.randn(40, 3, 7, 7, dtype=torch.float64)), torch.randint(0, 4, (40,))
    model = nn.Sequential(nn.Conv2d(images.shape[1], 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    clip = PerExampleClip(model, C, capture="graph")
    for start, count in ((0, 16), (0, 16), (0, 15), (16, 16), (3, 15), (5, 16), (20, 15), (9, 16), (0, 15)):
        check(clip, images[start : start + count], y[start : start + count])
    assert graph_calls(clip) >= 7
