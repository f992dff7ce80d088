"""What PerExampleClip refuses, what its messages name, and that it leaves the model as it was."""

import pytest
import torch
from torch import Tensor, nn

from engine_check import every_engine
from model_cases import CASES, Case, Forward, cross_entropy, floats, mlp, squares
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING
from oracle import example_gradients
from small_loop import clipped_by

rule_engines = pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)


@rule_engines
def test_a_penalty_on_the_parameters_is_a_part_of_each_examples_loss(engine: Engine) -> None:
    model, x, y = mlp().double(), torch.randn(3, 6).double(), torch.zeros(3).long()

    def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) + model.get_parameter("2.weight").square().sum()

    expected = example_gradients(model, penalised, (x, y)).clipped(1.0).vector
    torch.testing.assert_close(
        clipped_by(model, 1.0, penalised, (x, y), engine=engine), expected, rtol=1e-9, atol=1e-12
    )


@every_engine
def test_forward_without_gradients_is_refused(engine: Engine) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            return squares(model, x)

    with pytest.raises(PrivacyError, match="no_grad"):
        clipped_by(mlp(), 1.0, loss, (torch.randn(3, 6),), engine=engine)


@rule_engines
def test_an_input_changed_in_place_after_its_use_is_refused(engine: Engine) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        x = x.clone()
        return m.second(torch.tanh(m.first(x))) + x.mul_(2)[:, :5]

    model = Forward(forward, first=nn.Linear(6, 5), second=nn.Linear(5, 5))
    with pytest.raises(RuntimeError, match="changed in place"):
        clipped_by(model, 1.0, squares, (torch.randn(3, 6),), engine=engine)


def test_model_with_nothing_to_train() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        PerExampleClip(mlp().requires_grad_(False), 1.0)


def test_nothing_is_attached_to_the_model() -> None:
    model = mlp()
    attributes, keys = list(model.__dict__), list(model.state_dict())
    clip = PerExampleClip(model, 1.0)
    clip.accumulate(squares, torch.randn(3, 6))
    for _ in range(2):
        assert (list(model.__dict__), list(model.state_dict())) == (attributes, keys)
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
        clip.close()
    with pytest.raises(PrivacyError, match="make a new PerExampleClip"):
        clip.accumulate(squares, torch.randn(3, 6))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight", "ignore:.*prelu")
@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP(), PerExampleLoop()], ids=lambda e: type(e).__name__)
def test_autocast_forward_keeps_the_bound(engine: Engine) -> None:
    """Not by torch.func, which cannot differentiate an LSTM in autocast."""
    for case in [*CASES, Case("slopes", lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(4)), floats(6))]:
        model, inputs = case.model(), case.inputs(1)

        def lower(model: nn.Module, *inputs: Tensor, case: Case = case) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return 100 * case.loss(model, *inputs).float()

        def single(model: nn.Module, *inputs: Tensor, case: Case = case) -> Tensor:
            return 100 * case.loss(model, *inputs)

        found = clipped_by(model, 1.0, lower, inputs, engine=engine)
        assert float(found.norm()) <= 1 + ROUNDING, case.name
        assert float((found - clipped_by(model, 1.0, single, inputs)).norm()) <= 0.1, case.name
