"""What the engine that repeats the model's call refuses, and that it repeats faithfully."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_check import check, measured
from model_cases import Case, Forward, Scaling, cross_entropy, floats, mlp, parameter, squares
from noisette import MissingRuleError, PerExampleClip, PrivacyError, privatize
from noisette.clipping.engines import BookKeeping, MultiLoss, PerExampleLoop, Vmap
from oracle import clipped_sum


def clipped(model: nn.Module, losses: Callable[[], Tensor], engine=None) -> Tensor:
    clip = PerExampleClip(model, 0.5, engine=engine or Vmap())
    try:
        clip.backward(losses())
        [total] = clip.pop_sums()
    finally:
        clip.close()
    return torch.cat([g.flatten() for g in total.grads])


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_chunks_change_nothing(size: int) -> None:
    check(Case("mlp", mlp, lambda b: (torch.randn(b, 6),)), Vmap(chunk_size=size), b=7, dtype=torch.float64)


@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_chunk_size_is_a_whole_number(size) -> None:
    with pytest.raises((ValueError, TypeError), match="chunk_size"):
        Vmap(chunk_size=size)


def test_no_more_than_a_chunk_is_in_memory() -> None:
    seen = []
    model = Forward(lambda m, x: (seen.append(m.w), x @ m.w)[1], w=parameter(6, 4))
    clipped(model, lambda: squares(model, torch.randn(10, 6)), Vmap(chunk_size=4))
    assert len(seen) == 1 + 3, "the recorded call, then one for each chunk"


@pytest.mark.parametrize("engine", [Vmap(2), PerExampleLoop(), MultiLoss()], ids=lambda e: type(e).__name__)
def test_operation_without_a_rule(engine) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(m.w * x) * torch.fft.rfft(m.v), 4) + torch.logcumsumexp(m.v * x, 1)

    case = Case("no rule", lambda: Forward(forward, w=parameter(4), v=parameter(4)), floats(4))
    model, inputs = case.model().double(), tuple(x.double() for x in case.inputs(5))
    truth = clipped_sum(model, squares, inputs, 0.5)
    norms, sums = measured(model, squares, inputs, 0.5, engine)
    torch.testing.assert_close(norms, truth.norms, rtol=1e-10, atol=0)
    for name, expected in truth.sums.items():
        torch.testing.assert_close(sums[name], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", [Vmap(2), PerExampleLoop(), MultiLoss()], ids=lambda e: type(e).__name__)
def test_bad_example_without_a_rule_contributes_nothing(engine) -> None:
    model = Forward(lambda m, x: torch.hypot(x, m.w), w=parameter(4)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    x[3] = float("nan")
    with pytest.raises(MissingRuleError):
        measured(model, squares, (x,), 0.5, BookKeeping())
    expected = measured(model, squares, (x[[0, 1, 2, 4]],), 0.5, engine)[1]["w"]
    torch.testing.assert_close(measured(model, squares, (x,), 0.5, engine)[1]["w"], expected, rtol=1e-10, atol=1e-12)
    assert expected.any()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.dropout(x, 0.5))


class Counting(nn.Module):
    """Its answer depends on how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.calls


REPEATS_NOT = {
    "dropout": Dropping,
    "noise": lambda: Forward(lambda m, x: m.layer(x + torch.randn_like(x)), layer=nn.Linear(6, 4)),
    "state": Counting,
    "examples on the second axis": lambda: Forward(lambda m, x: m.layer(x[:1] + x), layer=nn.Linear(6, 4)),
    "centred over the batch": lambda: Forward(lambda m, x: m.layer(x - x.mean(0)), layer=nn.Linear(6, 4)),
    "shape that follows the batch": lambda: Forward(
        lambda m, x: m.layer(x).expand(len(x), len(x), 4).sum(1), layer=nn.Linear(6, 4)
    ),
}


@pytest.mark.parametrize("model", REPEATS_NOT.values(), ids=REPEATS_NOT)
def test_call_that_does_not_repeat_is_refused(model: Callable[[], nn.Module]) -> None:
    net, x = model(), torch.randn(5, 6)
    with pytest.raises(PrivacyError, match=r"repeated for single examples: .*\n?.*noisette\.engines\.MultiLoss\(\)"):
        clipped(net, lambda: squares(net, x))


def test_repeated_call_leaves_no_state() -> None:
    model = Counting()
    model.forward = lambda x: (model.calls.add_(1), model.layer(x))[1]
    clipped(model, lambda: squares(model, torch.randn(5, 6)))
    assert model.calls == 1
    assert model(torch.zeros(1, 6)).requires_grad


def test_dropout_that_evaluates_is_fine() -> None:
    model, x = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)).eval(), torch.randn(5, 6)
    torch.testing.assert_close(
        clipped(model, lambda: squares(model, x)), clipped(model, lambda: squares(model, x), PerExampleLoop())
    )


def test_inputs_that_hold_no_examples_are_passed_whole() -> None:
    def forward(m: Forward, x: Tensor, scale: Tensor, *, options: dict) -> Tensor:
        return m.layer(x * scale) + options["shift"] + options["of each"]

    model = Forward(forward, layer=nn.Linear(6, 4))
    model.forward = lambda *inputs, options: forward(model, *inputs, options=options)
    x, scale = torch.randn(5, 6), torch.randn(6)
    options = {"shift": torch.randn(4), "of each": torch.randn(5, 4), "name": "a string"}
    found, expected = (
        clipped(model, lambda: squares_of(model(x, scale, options=options)), e) for e in (Vmap(2), PerExampleLoop())
    )
    torch.testing.assert_close(found, expected)


def squares_of(out: Tensor) -> Tensor:
    return (out - 0.3).square().flatten(1).sum(1)


def test_outputs_of_several_kinds_and_rows_that_fold_positions() -> None:
    def forward(m: Forward, x: Tensor) -> dict[str, object]:
        h = m.body(x)
        return {"rows": m.head(h.flatten(0, 1)), "unused": m.other(h), "length": x.shape[1], "constant": x}

    model = Forward(forward, body=nn.Linear(6, 5), head=nn.Linear(5, 4), other=nn.Linear(5, 3))
    x = torch.randn(5, 3, 6)
    found, expected = (
        clipped(model, lambda: squares_of(model(x)["rows"].view(5, 3, 4)), e) for e in (Vmap(2), PerExampleLoop())
    )
    torch.testing.assert_close(found, expected)


def test_output_of_one_call_that_enters_the_next() -> None:
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), torch.randn(5, 6)
    found, expected = (clipped(model, lambda: squares_of(model(model(x))), e) for e in (Vmap(2), PerExampleLoop()))
    torch.testing.assert_close(found, expected)


def test_parameters_outside_the_call_are_refused_and_all_listed() -> None:
    model, x, y = mlp(), torch.randn(3, 6), torch.zeros(3).long()
    with pytest.raises(PrivacyError, match=r"2 parameters reach the losses .*: 0\.bias, 2\.weight\. Compute"):
        clipped(model, lambda: cross_entropy(model, x, y) + model[2].weight.square().sum() + model[0].bias.sum())


def test_inside_of_the_model_that_reaches_the_losses_by_itself_is_refused() -> None:
    held = []
    model = Forward(
        lambda m, x: (held.append(m.body(x)), m.head(held[-1]))[1], body=nn.Linear(6, 5), head=nn.Linear(5, 4)
    )
    with pytest.raises(PrivacyError, match=r"body\.bias, body\.weight"):
        clipped(model, lambda: squares(model, torch.randn(3, 6)) + held[0].sum(1))


def test_another_output_of_the_operation_that_made_the_models_output_is_refused() -> None:
    held = []

    def forward(m: Forward, x: Tensor) -> Tensor:
        first, second = m.layer(x).split(2, 1)
        held.append(second)
        return first

    model = Forward(forward, layer=nn.Linear(6, 4))
    with pytest.raises(PrivacyError, match=r"layer\.bias, layer\.weight"):
        clipped(model, lambda: squares(model, torch.randn(3, 6)) + held[0].sum(1))


def test_repeated_calls_are_not_recorded() -> None:
    model = mlp()
    clip = PerExampleClip(model, 0.5, engine=Vmap(2))
    clip.backward(squares(model, torch.randn(5, 6)))
    assert clip._tape.recording.uses == clip._tape.recording.calls == ()
    clip.close()


def test_output_changed_in_place_is_refused() -> None:
    model = Forward(lambda m, x: m.layer(x) * 1, layer=nn.Linear(6, 4))
    with pytest.raises(PrivacyError, match=r"output 0 .* changed in place.*MultiLoss"):
        clipped(model, lambda: squares_of(model(torch.randn(3, 6)).mul_(2)))


def test_output_without_examples_on_its_first_axis_is_refused() -> None:
    model = Forward(lambda m, x: m.layer(x).t(), layer=nn.Linear(6, 4))
    with pytest.raises(PrivacyError, match=r"output 0 has shape \(4, 3\)"):
        clipped(model, lambda: squares_of(model(torch.randn(3, 6)).t()))


def test_function_of_the_users_own_autograd_is_refused_by_torch() -> None:
    model = Forward(lambda m, x: Scaling.apply(x, m.scale), scale=parameter(6))
    with pytest.raises(PrivacyError, match=r"(?s)torch\.func cannot repeat the model's call: .*MultiLoss"):
        clipped(model, lambda: squares(model, torch.randn(3, 6)))


def test_private_run_by_repeated_calls() -> None:
    """Hooks of the run, the preflight and the tape are on the root that is called again."""
    model = Forward(lambda m, x: torch.fft.rfft(m.w * x).abs(), w=parameter(4))
    x = torch.randn(40, 4)
    with privatize(
        PerExampleClip(model, 0.5, engine=Vmap(4)),
        torch.optim.SGD(model.parameters(), lr=0.1),
        x,
        expected_batch_size=10,
        sampling_rate=0.25,
        steps=3,
        noise_multiplier=1.0,
        separability="asserted",
    ) as run:
        for batch in run.batches():
            for piece in batch.microbatches(5):
                run.backward(squares(model, piece))
            run.optimizer.step()
    assert run.ledger.committed == 3
