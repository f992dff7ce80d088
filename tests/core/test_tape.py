"""The tape sees uses and leaves no trace."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack as modes

from model_cases import Forward, Scaling, mlp, parameter
from noisette.core.backward import search
from noisette.core.trace import Tape

X = torch.randn(3, 6)


@pytest.fixture
def model():
    return mlp()


@pytest.fixture
def tape(model: nn.Module):
    tape = Tape(model, {})
    yield tape
    tape.close()


def operations(tape: Tape) -> list[str]:
    return [use.operation.__name__ for use in tape.recording.uses]


def test_uses_in_order(model: nn.Module, tape: Tape) -> None:
    model(X)
    assert operations(tape) == ["linear", "linear", "linear"]
    first = tape.recording.uses[0]
    assert [id(weight) for weight in first.weights] == [id(model[0].weight), id(model[0].bias)]
    assert len(tape.recording.outputs) == 1
    model(X)
    assert len(tape.recording.uses) == 6
    assert len(tape.pop().uses) == 6
    assert tape.recording.uses == ()


def test_edges_survive_in_place_operations(model: nn.Module, tape: Tape) -> None:
    out = model(X)
    edges = [edge for use in tape.recording.uses for edge in use.edges]
    found = torch.autograd.grad(out.sum(), edges)
    h = X @ model[0].weight.t() + model[0].bias
    h.retain_grad()
    model[2:](h.relu()).sum().backward()
    torch.testing.assert_close(found[0], h.grad)


def test_nothing_is_recorded_without_gradients(model: nn.Module, tape: Tape) -> None:
    with torch.no_grad():
        model(X)
    with torch.inference_mode():
        model(X)
    model.eval()
    with torch.no_grad():
        model(X)
    assert not tape.recording.uses
    assert not tape.recording.outputs


def test_frozen_parameters_are_constants() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    tape = Tape(model, {})
    model(X)
    assert len(tape.recording.uses) == 2
    tape.close()


def test_derived_weights_and_constants() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        positions = torch.arange(6) * 2
        return x * (m.w * m.mask)[1] + m.table[positions]

    model = Forward(forward, w=parameter(2, 6), mask=torch.ones(2, 6), table=parameter(12))
    tape = Tape(model, {})
    model(X)
    assert [weight.parents for weight in tape.recording.derived.values()] == [(model.w,), (model.w,), (model.table,)]
    assert [use.operation.__name__ for use in tape.recording.uses] in (["mul", "add"], ["__mul__", "__add__"])
    tape.close()


def test_buffer_that_data_was_written_into_is_data() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        m.memory.copy_(x[0])
        return x + m.w * m.memory

    model = Forward(forward, w=parameter(6), memory=torch.zeros(6))
    tape = Tape(model, {})
    model(X)
    assert len(tape.recording.uses) == 1
    assert tape.recording.uses[0].operation.__name__ in ("mul", "__mul__")
    tape.close()


def test_deep_copy_is_an_ordinary_model(model: nn.Module, tape: Tape) -> None:
    copied = copy.deepcopy(model)
    copied(X).sum().backward()
    assert tape.recording.uses == ()
    assert copied[0].weight.grad is not None
    model(X)
    copied(X)
    assert len(tape.recording.uses) == 3
    again = copy.deepcopy(copied)
    again(X)
    assert len(tape.recording.uses) == 3


def test_shallow_copy_does_not_disturb(model: nn.Module, tape: Tape) -> None:
    copy.copy(model)(X)
    assert tape.recording.uses == ()


def test_pickled_model_is_an_ordinary_model(model: nn.Module, tape: Tape) -> None:
    restored = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(restored(X), model(X))
    assert len(tape.recording.uses) == 3
    file = io.BytesIO()
    torch.save(model, file)


def test_state_dict_is_the_models_own(model: nn.Module) -> None:
    keys = list(model.state_dict())
    tape = Tape(model, {})
    assert list(model.state_dict()) == keys
    tape.close()


def test_exception_inside_forward_leaves_no_recording(model: nn.Module, tape: Tape) -> None:
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 5))
    assert modes() == []
    model(X)
    assert operations(tape)[-3:] == ["linear"] * 3
    assert modes() == []


def test_exception_in_a_hook_before_ours_leaves_no_recording(model: nn.Module, tape: Tape) -> None:
    def refuse(*_: object) -> None:
        raise ZeroDivisionError

    handle = model.register_forward_pre_hook(refuse, prepend=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            model(X)
    handle.remove()
    model(X)
    assert modes() == []
    assert operations(tape) == ["linear"] * 3


def test_interrupt_is_cleaned_up_by_close(model: nn.Module) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    tape = Tape(model, {})
    handle = model[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(X)
    tape.close()
    handle.remove()
    assert modes() == []


def test_root_that_calls_itself() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return m(x[:, :6]) if x.shape[1] > 6 else m.layer(x)

    model = Forward(forward, layer=nn.Linear(6, 6))
    tape = Tape(model, {})
    model(torch.randn(3, 9))
    assert len(tape.recording.uses) == 1
    assert len(tape.recording.outputs) == 1
    assert modes() == []
    tape.close()


def test_two_tapes_on_one_model(model: nn.Module, tape: Tape) -> None:
    other = Tape(model, {})
    model(X)
    other.close()
    assert len(tape.recording.uses) == 3
    model(X)
    assert len(tape.recording.uses) == 6


def test_close_removes_the_hooks(model: nn.Module) -> None:
    tape = Tape(model, {})
    model(X)
    tape.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert tape.recording.uses == ()
    model(X)
    assert tape.recording.uses == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_forward_is_recorded(model: nn.Module, tape: Tape) -> None:
    torch.compile(model, backend="eager")(X)
    assert operations(tape) == ["linear"] * 3
    assert modes() == []


def test_parameters_on_a_way_that_was_not_seen() -> None:
    model = Forward(
        lambda m, x: m.b(Scaling.apply(m.a(x), m.hidden)), a=nn.Linear(6, 6), hidden=parameter(6), b=nn.Linear(6, 2)
    )
    tape = Tape(model, {})
    losses = model(X).sum(1)
    assert search(losses, tape.recording.uses, tape.parameters).uncovered == ("hidden",)
    losses = losses + model.b.weight.square().sum()
    assert search(losses, tape.recording.uses, tape.parameters).uncovered == (
        "b.weight",
        "hidden",
    )
    tape.close()


def test_weight_written_through_a_view_is_found() -> None:
    """The tape sees the view change, not what it is a view of; the graph knows."""

    def written(m: Forward, x: Tensor) -> Tensor:
        h = torch.zeros(6)
        h[2:].copy_(m.p)
        return x * (h * m.w)

    def added(m: Forward, x: Tensor) -> Tensor:
        h = m.w * 1
        h[2:].add_(m.p)
        return x * h

    for forward in (written, added):
        model = Forward(forward, p=parameter(4), w=parameter(6))
        tape = Tape(model, {})
        losses = model(torch.randn(3, 6)).sum(1)
        assert "p" in search(losses, tape.recording.uses, tape.parameters).uncovered
        tape.close()


def test_derived_weight_that_changes_after_its_use_is_refused() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        w = m.w * 2
        first = x.detach() * w
        w.mul_(3)
        return first + w * x

    model = Forward(forward, w=parameter(6))
    tape = Tape(model, {})
    model(torch.randn(3, 6))
    with pytest.raises(RuntimeError, match="changed in place"):
        tape.recording.uses[0].check_unchanged()
    tape.close()
