"""Every engine gives the clipped sum of the oracle, for every model, however many examples are clipped."""

import pytest
import torch
from torch import Tensor

from engine_check import ENGINES, NOT_FOR_VMAP, cast, check, every_engine, measured
from model_cases import CASES, Case, Forward, cross_entropy, floats, mlp, parameter, squares
from noisette import PrivacyError
from noisette.clipping.engines import PerExampleLoop, Vmap
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING
from noisette.run.per_example import PerExampleClip
from oracle import clipped_sum

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))


@every_engine
@every_case
def test_clipped_sum_is_the_oracles(case: Case, engine: Engine) -> None:
    check(case, engine, b=7, dtype=torch.float64)


@every_case
def test_batches_of_one_and_two(case: Case) -> None:
    check(case, *ENGINES, b=1, dtype=torch.float64)
    check(case, *ENGINES, b=2, dtype=torch.float64)


@every_engine
@pytest.mark.parametrize("size", [1, 3])
def test_pieces_add_up_to_the_whole(engine: Engine, size: int) -> None:
    model, (x, y) = mlp().double(), cast(CASES[0].inputs(7), torch.float64)
    whole = torch.cat([g.flatten() for g in measured(model, cross_entropy, (x, y), 0.5, engine)[1].values()])
    clip = PerExampleClip(model, 0.5, engine=engine)
    for piece in zip(x.split(size), y.split(size), strict=True):
        clip.accumulate(cross_entropy, *piece)
    [total] = clip.pop_sums()
    [after] = clip.pop_sums()
    torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), whole, rtol=1e-12, atol=1e-14)
    assert not any(g.any() for g in after.grads), "take() starts anew"


BAD = {"nan": float("nan"), "minus inf": -float("inf")}
FLOATS = "mlp with in-place relu", "cnn with uneven axes", "python-loop recurrent", "attention", "elementwise"
FLOAT_CASES = [case for case in CASES if case.name in (*FLOATS, "conv called twice", "overlapping views")]


@every_engine
@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
@pytest.mark.parametrize("case", FLOAT_CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_bad_example_contributes_exactly_nothing(case: Case, value: float, engine: Engine) -> None:
    model, inputs = case.model().double(), cast(case.inputs(5), torch.float64)
    for at in (0, 4):
        x = inputs[0].clone()
        x[at].view(-1)[::3] = value
        rest = [i for i in range(5) if i != at]
        _, without = measured(model, case.loss, tuple(t[rest] for t in inputs), 0.5, engine)
        _, sums = measured(model, case.loss, (x, *inputs[1:]), 0.5, engine)
        for name, g in without.items():
            torch.testing.assert_close(sums[name], g, rtol=1e-10, atol=1e-12)


@every_engine
@pytest.mark.parametrize("case", FLOAT_CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_huge_example_stays_within_the_bound(case: Case, engine: Engine) -> None:
    model, inputs = case.model(), case.inputs(5)
    x = inputs[0].clone()
    x[2] = 1e30
    _, without = measured(model, case.loss, tuple(t[[0, 1, 3, 4]] for t in inputs), 0.5, engine)
    _, sums = measured(model, case.loss, (x, *inputs[1:]), 0.5, engine)
    moved = torch.cat([(sums[name] - g).flatten() for name, g in without.items()])
    assert moved.isfinite().all()
    assert float(moved.norm()) <= 0.5 * (1 + ROUNDING)


@every_engine
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e4, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_example_never_exceeds_the_bound(engine: Engine, scale: float, dtype: torch.dtype) -> None:
    for bound in (1e-3, 1.0, 1e3):
        for case in CASES[:2]:
            model, inputs = case.model().to(dtype), case.inputs(1)
            _, sums = measured(model, case.loss, ((inputs[0] * scale).to(dtype), *inputs[1:]), bound, engine)
            assert float(torch.cat([g.flatten() for g in sums.values()]).norm()) <= bound * (1 + ROUNDING)


@every_engine
def test_gradient_hooks_of_the_user_see_nothing_private(engine: Engine) -> None:
    for case in CASES:
        if isinstance(engine, Vmap) and case.name in NOT_FOR_VMAP:
            continue
        model, seen = case.model(), []
        for p in model.parameters():
            if p.requires_grad:
                p.register_hook(seen.append)
                p.register_post_accumulate_grad_hook(seen.append)
        inputs = case.inputs(3)
        measured(model, case.loss, inputs, 0.5, engine)
        assert seen == [], case.name
        case.loss(model, *inputs).sum().backward()
        assert seen, "the hooks are back in place"


@every_engine
def test_gradients_that_are_equal_have_memory_of_their_own(engine: Engine) -> None:
    """Each is noised in place, so none may lie where another one lies, or in what the user holds."""
    model = Forward(lambda m, x: (x + m.p + m.q).square(), p=parameter(1, 3), q=parameter(1, 3))
    clip = PerExampleClip(model, 1.0, engine=engine)
    clip.accumulate(lambda model, x: model(x).sum(), torch.randn(1, 3))
    [total] = clip.pop_sums()
    assert torch.equal(*total.grads)
    total.grads[0].zero_()
    assert total.grads[1].all()


both = pytest.mark.parametrize("engine", [PerExampleLoop(), Vmap(2)], ids=lambda e: type(e).__name__)


def test_no_more_than_a_chunk_is_in_memory() -> None:
    seen = []
    model = Forward(lambda m, x: (seen.append(m.w), x @ m.w)[1], w=parameter(6, 4))
    measured(model, squares, (torch.randn(10, 6),), 0.5, Vmap(chunk_size=4))
    assert len(seen) == 1 + 3, "the recorded call, then one for each chunk"


@both
def test_operation_without_a_rule(engine: Engine) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(m.w * x) * torch.fft.rfft(m.v), 4) + torch.logcumsumexp(m.v * x, 1)

    case = Case("no rule", lambda: Forward(forward, w=parameter(4), v=parameter(4)), floats(4))
    check(case, engine, b=5, dtype=torch.float64)


def test_vmap_says_what_to_use_where_torch_cannot_differentiate() -> None:
    model = Forward(lambda m, x: m.w.expand(len(x), -1).clone().add_(x), w=parameter(6))
    with pytest.raises(PrivacyError, match=r"(?s)torch\.func cannot differentiate .*PerExampleLoop\(\)"):
        measured(model, squares, (torch.randn(3, 6),), 0.5, Vmap())
    x = torch.randn(3, 6)
    found = measured(model, squares, (x,), 0.5, PerExampleLoop())[1]["w"]
    torch.testing.assert_close(found, clipped_sum(model, squares, (x,), 0.5).sums["w"], rtol=1e-5, atol=1e-6)
