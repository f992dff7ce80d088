"""Networks, hooks and settings that would move the sum of a Lipschitz bound by more than the bound that it releases.

Each attack is a loop over a batch with and without one record. Either it is refused, or the difference of the two sums
is within the sensitivity by which the noise of this very batch is scaled. Every attack has a harmless sister.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipschitz_networks import dense
from noisette import LipschitzBound, PrivacyError, certify
from noisette.lipschitz.projections import FrobeniusBall
from noisette.lipschitz.propagation import Stretching
from noisette.nn import lipschitz
from noisette.nn.lipschitz import BoundedInput, HuberLoss, Scale, SpectralLinear, TauBCE, TauCrossEntropy

F = nn.functional
TAU = 20.0
Sums = dict[str, tuple[Tensor, float]]  # by parameter: the sum that is released, and its sensitivity


def bound_of(model: nn.Module, shape: tuple[int, ...] = (6,), **settings: Any) -> LipschitzBound:
    return LipschitzBound(model, loss=TauCrossEntropy(TAU, classes=4), input_shape=shape, slack=0.0, **settings)


def steep(scores: Tensor, y: Tensor) -> Tensor:
    """A loss that asks for more than any bound, so every gradient at the scores is as long as it may be."""
    rows = scores.flatten(1)
    return 1e3 * (rows.gather(1, y.unsqueeze(1)).squeeze(1) - rows.sum(1) / rows.shape[1])


def add(bound: LipschitzBound, x: Tensor, y: Tensor) -> None:
    bound.accumulate(lambda model, x, y: steep(model(x), y), x, y)


def popped(bound: LipschitzBound) -> Sums:
    names = {id(p): name for name, p in bound.parameters.items()}
    return {
        names[id(p)]: (g.double(), part.bound)
        for part in bound.pop_sums()
        if part.name == "gradient"
        for p, g in zip(part.params, part.grads, strict=True)
    }


def largest_ratio(bound: LipschitzBound, batch: Callable[[Tensor, Tensor], None], shape: tuple[int, ...]) -> float:
    """How far one of many records moves a parameter's sum, in units of the sensitivity that is released with it.

    ``batch`` gives two public records, and the one in question, to the bound, and does to it what the attack does.
    """
    public, worst = torch.randn(2, *shape, dtype=torch.float64), 0.0
    batch(public, torch.tensor([0, 1]))
    without = popped(bound)
    for k in range(30):
        record = torch.randn(1, *shape, dtype=torch.float64) * 100
        if k % 3 == 0:
            record = torch.full_like(record, 100.0)
        batch(torch.cat([public, record]), torch.tensor([0, 1, k % 3]))
        for name, (total, limit) in popped(bound).items():
            worst = max(worst, float((total - without[name][0]).norm()) / limit)
    return worst


def holds(bound: LipschitzBound, batch: Callable[[Tensor, Tensor], None], shape: tuple[int, ...] = (6,)) -> bool:
    try:
        ratio = largest_ratio(bound, batch, shape)
    except PrivacyError:
        return True
    return ratio <= 1 + 1e-9


def test_the_ratio_comes_close_to_one_without_an_attack() -> None:
    bound = bound_of(dense(6, 6, 4))
    assert 0.9 < largest_ratio(bound, lambda x, y: add(bound, x, y), (6,)) <= 1 + 1e-9


class NormOfChannels(Stretching):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).norm(dim=2)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[:1]


class Windows(Stretching):
    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, 7, padding=3).unflatten(-1, x.shape[-2:])

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (49 * shape[0], *shape[1:])

    def constant(self, shape: tuple[int, ...]) -> float:
        return math.prod(min(side, 7) for side in shape[1:]) ** 0.5


def windows(declared: int) -> LipschitzBound:
    layers = (BoundedInput(2.0), Windows(), lipschitz.SpectralConv2d(49, 4, 1), NormOfChannels())
    return bound_of(nn.Sequential(*layers, SpectralLinear(4, 4)).double(), (1, declared, declared))


class AsToken(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, self.length - x.shape[1]))


def sigmoid(length: int) -> LipschitzBound:
    layers = (AsToken(length), BoundedInput(0.1), nn.Sigmoid(), SpectralLinear(4, 2))
    return bound_of(nn.Sequential(*layers).double(), (length, 4))


def test_a_larger_image_or_a_longer_sequence_than_declared_is_refused() -> None:
    for bound, x in ((windows(1), torch.ones(3, 1, 13, 13)), (sigmoid(2), torch.ones(3, 90, 4))):
        declared, got = str(bound.input_shape), str(tuple(x.shape[1:]))[1:]
        with pytest.raises(PrivacyError) as refusal:
            add(bound, x.double(), torch.tensor([0, 1, 0]))
        assert declared in str(refusal.value)
        assert got in str(refusal.value)


def by_name(bound: LipschitzBound, x: Tensor, y: Tensor) -> None:
    bound.accumulate(lambda model, x, y: steep(model(input=x), y), x, y)


def padded_in_the_loss(bound: LipschitzBound, x: Tensor, y: Tensor) -> None:
    bound.accumulate(lambda model, x, y: steep(model(F.pad(x, (6, 6, 6, 6), "replicate")), y), x, y)


@pytest.mark.parametrize(("give", "side"), [(by_name, 13), (add, 13), (padded_in_the_loss, 1)])
def test_no_way_into_the_model_avoids_the_check_of_shapes(give, side: int) -> None:
    bound = windows(1)
    assert holds(bound, lambda x, y: give(bound, x, y), (1, side, side))


def test_a_front_part_that_changes_its_shape_later_is_refused() -> None:
    longer: Any = sigmoid(3)
    longer.model[0].length = 90
    with pytest.raises(PrivacyError, match=r"AsToken returned examples of shape \(90, 4\).*\(3, 4\)"):
        add(longer, torch.ones(2, 3, 4, dtype=torch.float64), torch.tensor([0, 1]))


def test_rows_of_an_example_cannot_pass_as_examples() -> None:
    layers = (nn.Flatten(0, 1), BoundedInput(2.0), SpectralLinear(4, 4), nn.Unflatten(0, (-1, 9)))
    with pytest.raises(PrivacyError, match="first axis must hold the examples"):
        bound_of(nn.Sequential(*layers).double(), (9, 4))
    bound = bound_of(dense(6, 6, 4))
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    with pytest.raises(PrivacyError, match="4 rows for one example"):
        bound.accumulate(lambda model, x, y: steep(model(x.repeat(4, 1)), y.repeat(4)).sum(), x, y)


class ByMode(Stretching):
    """Ten times its input in training mode, and says so."""

    def forward(self, x: Tensor) -> Tensor:
        return self.constant(()) * x

    def constant(self, shape: tuple[int, ...]) -> float:
        return 10.0 if self.training else 1.0


def lively() -> LipschitzBound:
    layers = (BoundedInput(2.0), SpectralLinear(6, 6), ByMode(), Scale(2.0), nn.LeakyReLU(3.0), SpectralLinear(6, 4))
    return bound_of(nn.Sequential(*layers).double())


def certified_norm(bound: Any) -> None:
    bound.model[1].norm = bound.model[5].norm = 1e-3


def a_layer_with_the_same_weight(bound: Any) -> None:
    other = SpectralLinear(6, 4, FrobeniusBall(1e-3)).double()
    other.weight = bound.model[5].weight
    bound.model[5] = other


CHANGES: dict[str, Callable[[Any], Any]] = {
    "larger input": lambda bound: setattr(bound.model[0], "x0", 0.25),
    "evaluation": lambda bound: bound.model.eval(),
    "factor": lambda bound: setattr(bound.model[3], "factor", 0.01),
    "slope": lambda bound: setattr(bound.model[4], "negative_slope", 0.1),
    "a weaker loss": lambda bound: setattr(bound, "loss", HuberLoss(delta=0.02)),
    "certified norm": certified_norm,
    "a layer with the same weight": a_layer_with_the_same_weight,
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@contextmanager
def for_a_while(bound: LipschitzBound, change: Callable[[Any], Any]) -> Iterator[None]:
    model = bound.model
    assert isinstance(model, nn.Sequential)
    loss, layers, states = bound.loss, list(model), [dict(vars(layer)) for layer in model]
    change(bound)
    yield
    bound.loss = loss
    model.train()
    for k, (layer, state) in enumerate(zip(layers, states, strict=True)):
        model[k] = layer
        vars(layer).update(state)


@every_change
def test_a_change_before_the_step_does_not_lower_the_bound_of_the_batch(change) -> None:
    bound = lively()

    def batch(x: Tensor, y: Tensor) -> None:
        nonlocal undo
        undo.__exit__(None, None, None)
        add(bound, x, y)
        undo = for_a_while(bound, change)
        undo.__enter__()  # the sums are popped with the change in place

    undo: AbstractContextManager[Any] = nullcontext()
    assert holds(bound, batch)


@every_change
@pytest.mark.parametrize("tightened", [False, True], ids=["loosened later", "tightened later"])
def test_a_change_between_microbatches_does_not_lower_the_bound_of_the_batch(change, tightened: bool) -> None:
    bound = lively()

    def batch(x: Tensor, y: Tensor) -> None:
        if tightened:
            add(bound, x[1:], y[1:])
        with for_a_while(bound, change):
            add(bound, x[:1], y[:1])
        if not tightened:
            add(bound, x[1:], y[1:])

    assert holds(bound, batch)


@pytest.mark.parametrize("change", [certified_norm, a_layer_with_the_same_weight])
def test_norms_that_were_not_certified_for_the_weights_are_certified_again(change) -> None:
    bound = lively()
    change(bound)
    assert holds(bound, lambda x, y: add(bound, x, y))


def test_a_bound_that_grows_within_a_batch_is_refused_and_between_batches_welcome() -> None:
    bound = lively()
    x, y = torch.randn(2, 6, dtype=torch.float64), torch.tensor([0, 1])
    with for_a_while(bound, CHANGES["evaluation"]):
        add(bound, x, y)
        small = popped(bound)
        add(bound, x, y)
    with pytest.raises(PrivacyError, match=r"sensitivity of 1\.weight has grown from .* since the first microbatch"):
        add(bound, x, y)
    popped(bound)
    add(bound, x, y)
    assert popped(bound)["1.weight"][1] == pytest.approx(10 * small["1.weight"][1])


def test_evaluation_between_microbatches_is_harmless() -> None:
    layers = (BoundedInput(2.0), SpectralLinear(6, 6), nn.Dropout(0.5), SpectralLinear(6, 4))
    bound = bound_of(nn.Sequential(*layers).double())
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    limits = bound.sensitivities()
    for part in (slice(0, 2), slice(2, 4)):
        bound.model.train()
        add(bound, x[part], y[part])
        bound.model.eval()
        bound.model(x)  # with gradients, and without a backward pass
    assert {name: limit for name, (_, limit) in popped(bound).items()} == limits, "as with a batch of no example"


def in_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, Tensor) else None


HOOKS: dict[str, Callable[[Any, Callable[[Tensor], Any]], Any]] = {
    "forward hook": lambda model, do: model[1].register_forward_hook(lambda module, args, output: do(output)),
    "pre-hook of the root": lambda model, do: model.register_forward_pre_hook(lambda module, args: do(args[0])),
    "full backward hook": lambda model, do: model[3].register_full_backward_hook(
        lambda module, to_input, to_output: in_tuple(do(to_input[0]))
    ),
    "global forward hook": lambda model, do: torch_module.register_module_forward_hook(
        lambda module, args, output: do(output) if module is model[1] else None
    ),
}
NAMED = {"forward hook": "1", "pre-hook of the root": "the model itself", "full backward hook": "3"}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_the_user_take_no_part_and_are_there_again(kind: str) -> None:
    layers = (BoundedInput(2.0), SpectralLinear(6, 6), nn.Dropout(0.5), SpectralLinear(6, 4))
    bound = bound_of(nn.Sequential(*layers).double())
    x, y = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 1, 2])
    torch.manual_seed(5)
    add(bound, x, y)
    expected, after = popped(bound), torch.rand(3)
    calls: list[int] = []
    named = f"hooks of {NAMED.get(kind)} do not run"
    refusal = nullcontext() if "global" in kind else pytest.warns(UserWarning, match=named)
    with HOOKS[kind](bound.model, lambda x: calls.append(1) or 10 * x):
        torch.manual_seed(5)
        with refusal:
            add(bound, x, y)
        assert torch.equal(torch.rand(3), after)
        assert not calls
        bound.model(x.clone().requires_grad_()).sum().backward()
        assert calls, "a call of one's own runs them"
    for name, (total, limit) in popped(bound).items():
        assert torch.equal(total, expected[name][0])
        assert limit == expected[name][1]


def test_a_hook_on_a_parameter_changes_no_sum_and_a_replaced_forward_is_refused() -> None:
    bound: Any = bound_of(dense(6, 6, 4))
    x, y = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 1, 2])
    add(bound, x, y)
    expected = popped(bound)
    with bound.parameters["1.weight"].register_hook(lambda g: 100 * g):
        add(bound, x, y)
    assert torch.equal(popped(bound)["1.weight"][0], expected["1.weight"][0])
    plain = bound.model[1].forward
    bound.model[1].forward = lambda x: 10 * plain(x)
    with pytest.raises(PrivacyError, match="forward of a SpectralLinear was replaced"):
        add(bound, x, y)


@pytest.mark.parametrize("threshold", [0.0, 5.0])
def test_an_activation_with_a_jump_has_no_bound_and_no_certificate(threshold: float) -> None:
    softplus = nn.Softplus(threshold=threshold)
    model = nn.Sequential(BoundedInput(3.0), SpectralLinear(2, 2), softplus, SpectralLinear(2, 2))
    for refused in (lambda: bound_of(model, (2,)), lambda: certify(model, torch.randn(3, 2))):
        with pytest.raises(PrivacyError, match=r"jumps where beta x .* give threshold=20 or more"):
            refused()


@pytest.mark.parametrize("activation", [nn.CELU(-0.5), nn.Hardshrink(3.0), nn.PReLU(init=9.0)], ids=str)
def test_an_activation_without_a_known_constant_is_refused(activation: nn.Module) -> None:
    activation.requires_grad_(False)
    model = nn.Sequential(BoundedInput(3.0), SpectralLinear(2, 2), activation, SpectralLinear(2, 2))
    with pytest.raises(PrivacyError, match="no finite sensitivity"):
        bound_of(model, (2,))
    with pytest.raises(ValueError, match="without a Lipschitz constant"):
        certify(model, torch.randn(3, 2))


@pytest.mark.parametrize(
    ("loss", "outputs", "wrong"),
    [
        (TauCrossEntropy(3.0), 4, [-1, 4, -100, 0.5, math.nan]),
        (TauBCE(3.0), 1, [-1, 2, 0.5, math.nan]),
        (HuberLoss(), 1, [math.nan, math.inf]),
    ],
    ids=str,
)
def test_a_target_that_is_none_contributes_nothing(loss, outputs, wrong) -> None:
    model = dense(6, 6, outputs)
    bound = LipschitzBound(model, loss=loss, input_shape=(6,))
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)

    def sums(x: Tensor, y: Tensor) -> list[Tensor]:
        bound.accumulate(lambda model, x, y: loss(model(x), y), x, y)
        return [g for part in bound.pop_sums() for g in part.grads]

    without = sums(x[1:], y[1:])
    assert float(without[-1].norm()) > 0
    for target in wrong:
        y[0] = target
        for one, other in zip(sums(x, y), without, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-12)
