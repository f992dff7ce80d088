"""Lipschitz layers and losses: formulas, bounds by hand and against ascent, and refusals."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipschitz_networks import spectral_norm
from noisette.lipschitz import Bounded, Constrained, NormBound, propagation
from noisette.lipschitz.projections import FrobeniusBall, project
from noisette.lipschitz.propagation import is_bounded
from noisette.nn import lipschitz as lip

F = nn.functional
Formula = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


def worst_case_search(module, shape, target=None, *, restore=lambda: None, steps=120, rate=0.05) -> float:
    """Norm of the gradient of <G, module(x)> at ``target`` (a parameter, or the input if none), ||x|| = ||G|| = 1.

    The input, G and all parameters climb together; after each step ``restore`` puts the parameters back in their sets.
    """
    x = torch.randn(1, *shape, dtype=torch.float64, requires_grad=True)
    back = torch.randn_like(module(x)).requires_grad_()
    moving = [x, back, *module.parameters()]
    ascent = torch.optim.Adam(moving, lr=rate, maximize=True)
    best = 0.0
    for _ in range(steps):
        with torch.no_grad():
            x.div_(x.norm())
            back.div_(back.norm())
            restore()
        wanted = x if target is None else target
        [gradient] = torch.autograd.grad((module(x) * back).sum(), [wanted], create_graph=True)
        size = gradient.norm()
        best = max(best, float(size.detach()))
        for tensor, climb in zip(moving, torch.autograd.grad(size, moving, allow_unused=True), strict=True):
            tensor.grad = climb
        ascent.step()
    return best


def clip_singular_values(matrices: Tensor) -> None:
    """Singular values of each matrix of the stack that are above one become one, in place."""
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    matrices.copy_((u * s.clamp(max=1).unsqueeze(-2)) @ vh)


def dense_matrix(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The matrix of a linear function of one example, one column for each number of its input."""
    size = torch.Size(shape).numel()
    units = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return torch.cat([function(unit.unsqueeze(0)).reshape(-1, 1) for unit in units], 1).detach()


def largest_stretch(module: nn.Module, shape: tuple[int, ...], pairs: int = 100) -> float:
    """How much further apart the module takes random pairs of inputs, half of them close together, at most."""
    first = torch.randn(pairs, *shape, dtype=torch.float64)
    apart = torch.randn_like(first) * torch.where(torch.arange(pairs) % 2 == 0, 1.0, 1e-3).view(-1, *[1] * len(shape))
    moved = (module(first + apart) - module(first)).detach().flatten(1).norm(dim=1)
    return float((moved / apart.flatten(1).norm(dim=1)).max())


@dataclass(frozen=True)
class Layer:
    """A layer, the shape of an example, its formula, and the fraction of its bounds that ascent must reach."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    formula: Formula
    reached: float = 0.97  # least fraction of the bound on a parameter's gradient
    stretched: float = 0.93  # least fraction of the bound on the input's gradient


def sorted_pairs(x: Tensor) -> Tensor:
    """Neighbouring pairs along axis 1 in ascending order."""
    out = x.clone()
    for k in range(0, x.shape[1], 2):
        out[:, k] = torch.where(x[:, k] < x[:, k + 1], x[:, k], x[:, k + 1])
        out[:, k + 1] = torch.where(x[:, k] < x[:, k + 1], x[:, k + 1], x[:, k])
    return out


def mlp(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    hidden = sorted_pairs(torch.einsum("...n,hn->...h", x, first).transpose(1, -1)).transpose(1, -1)
    return torch.einsum("...h,nh->...n", hidden - hidden.mean(-1, keepdim=True), second)


def mixed(block: nn.Module, x: Tensor) -> Tensor:
    w = dict(block.named_parameters())
    x = mlp(x.mT, w["mix_tokens.module.0.weight"], w["mix_tokens.module.3.weight"]).mT
    return mlp(x, w["mix_channels.0.weight"], w["mix_channels.3.weight"])


def scaled_conv(looks: int, **figures: Any) -> Formula:
    return lambda layer, x: F.conv2d(x, layer.weight, **figures) / math.sqrt(looks)


LAYERS: dict[str, Layer] = {
    "linear": Layer(lambda: lip.SpectralLinear(5, 3), (5,), lambda m, x: x @ m.weight.T),
    "linear over positions": Layer(lambda: lip.SpectralLinear(5, 4), (3, 5), lambda m, x: x @ m.weight.T),
    "conv": Layer(lambda: lip.SpectralConv2d(2, 4, 3, padding=1), (2, 8, 8), scaled_conv(9, padding=1), 0.5, 0.75),
    "conv of every figure": Layer(
        lambda: lip.SpectralConv2d(2, 3, 3, 2, 1), (2, 5, 4), scaled_conv(4, stride=2, padding=1), 0.4, 0.7
    ),
    "conv of even windows": Layer(lambda: lip.SpectralConv2d(2, 3, 2), (2, 5, 5), scaled_conv(4), 0.6, 0.75),
    "conv of one pixel": Layer(lambda: lip.SpectralConv2d(4, 3, 1), (4, 3, 3), scaled_conv(1)),
    "patch conv": Layer(lambda: lip.PatchConv2d(2, 9, patch=2), (2, 6, 4), scaled_conv(1, stride=2)),
    "pair sort": Layer(lambda: lip.GroupSort2(), (6,), lambda m, x: sorted_pairs(x)),
    "pair sort of sequences": Layer(lambda: lip.GroupSort2(-1), (3, 4), lambda m, x: sorted_pairs(x.mT).mT),
    "centring of channels": Layer(
        lambda: lip.LayerCentering(1), (4, 3, 3), lambda m, x: x - x.sum(1, keepdim=True) / 4
    ),
    "centring of positions": Layer(
        lambda: lip.LayerCentering((2, 3)), (4, 3, 3), lambda m, x: x - x.sum((2, 3), keepdim=True) / 9
    ),
    "bounded input": Layer(
        lambda: lip.BoundedInput(1.0), (4,), lambda m, x: x * (1.0 / x.norm(dim=1, keepdim=True)).clamp(max=1)
    ),
    "scale": Layer(lambda: lip.Scale(-1.5), (4,), lambda m, x: x * -1.5),
    "token mix": Layer(lambda: lip.TokenMix(lip.SpectralLinear(5, 4)), (5, 3), lambda m, x: m.module.weight @ x),
    "mixer of maps": Layer(
        lambda: lip.MixerBlock(4, 4),
        (4, 2, 2),
        lambda m, x: mixed(m, x.flatten(2).mT).mT.unflatten(2, (2, 2)),
        0.9,
        0.9,
    ),
}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
training = {name: layer for name, layer in LAYERS.items() if list(layer.make().parameters())}
every_training_layer = pytest.mark.parametrize("layer", training.values(), ids=training)


def moved(layer: Layer) -> nn.Module:
    module = layer.make().double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
        restore(module)
    return module


def restore(module: nn.Module) -> None:
    """Bring the parameters back into their sets, and certify the largest norm of these."""
    for part in module.modules():
        if isinstance(part, Constrained):
            clip_singular_values(part.matrices())
            part.set_certified_norms(torch.ones(1))


def bounded(module: nn.Module) -> Bounded:
    assert is_bounded(module)
    return module


@every_layer
def test_a_layer_computes_its_formula_and_its_gradients_in_double_precision(layer) -> None:
    module = moved(layer)
    x = torch.randn(3, *layer.shape, dtype=torch.float64, requires_grad=True)
    tensors = [x, *module.parameters()]
    found, expected = module(x), layer.formula(module, x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    back = torch.randn_like(found)
    gradients = torch.autograd.grad(found, tensors, back)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, tensors, back), rtol=1e-11, atol=1e-12)
    alone = torch.cat([module(one) for one in x.split(1)])
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)
    assert module(x[:0]).shape == (0, *alone.shape[1:])


@every_layer
def test_ascent_nearly_reaches_the_bound_on_the_input_gradient_and_nothing_exceeds_it(layer) -> None:
    module = moved(layer)
    bound, _ = bounded(module).bound_backward(NormBound(1.0, layer.shape), 1.0)
    assert largest_stretch(module, layer.shape) <= bound * (1 + 1e-9)
    x, reach = torch.randn(200, *layer.shape).double(), bounded(module).bound_forward(NormBound(2.0, layer.shape))
    output = module(2 * x / x.flatten(1).norm(dim=1).view(-1, *[1] * len(layer.shape))).detach()
    assert output.shape[1:] == reach.shape
    assert float(output.flatten(1).norm(dim=1).max()) <= reach.norm * (1 + 1e-12)
    found = worst_case_search(module, layer.shape, restore=lambda: restore(module))
    assert layer.stretched * bound <= found <= bound * (1 + 1e-9)


@every_training_layer
def test_ascent_nearly_reaches_the_bound_on_a_parameter_gradient_and_does_not_exceed_it(layer) -> None:
    module = moved(layer)
    _, bounds = bounded(module).bound_backward(NormBound(1.0, layer.shape), 1.0)
    assert set(bounds) == set(module.parameters())
    far, steep = bounded(module).bound_backward(NormBound(5.0, layer.shape), 3.0)
    assert far == pytest.approx(3 * bounded(module).bound_backward(NormBound(1.0, layer.shape), 1.0)[0], rel=1e-12)
    assert all(steep[p] == pytest.approx(15 * bounds[p], rel=1e-12) for p in bounds)
    for p in module.parameters():
        found = worst_case_search(module, layer.shape, p, restore=lambda: restore(module))
        assert layer.reached * bounds[p] <= found <= bounds[p] * (1 + 1e-9)


@every_training_layer
def test_weights_are_feasible_from_the_start_and_after_a_state_is_loaded(layer) -> None:
    module, other = layer.make(), layer.make()
    with torch.no_grad():
        for p in other.parameters():
            p.copy_(5 * torch.randn_like(p))
    module.load_state_dict(other.state_dict())
    for fresh in (layer.make(), module):
        for part in fresh.modules():
            if isinstance(part, Constrained):
                norms = torch.linalg.matrix_norm(part.matrices().detach().double(), ord=2)
                assert float(norms.max()) <= part.norm <= 1 + 1e-5


def test_no_bound_vanishes_with_the_weights() -> None:
    layer = lip.SpectralLinear(3, 3, projection=FrobeniusBall())
    with torch.no_grad():
        layer.weight.zero_()
    project(layer)
    assert layer.norm == 1e-3
    layer.set_certified_norms(torch.tensor([0.25]))
    assert layer.bound_forward(NormBound(2.0, (3,))).norm == 0.5
    # The norm of the input does not change, so neither does the bound on the gradient of the weight.
    assert layer.bound_backward(NormBound(2.0, (3,)), 3.0) == (0.75, {layer.weight: 6.0})
    with pytest.raises(ValueError, match="no finite norm"):
        layer.set_certified_norms(torch.tensor([math.nan]))
    assert layer.norm == 0.25


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (2, 3, 5)], ids=str)
def test_overlap_and_output_size_are_those_of_a_convolution_of_ones(kernel, stride, padding) -> None:
    layer = lip.SpectralConv2d(1, 1, kernel, stride, padding)
    for size in ((7, 7), (8, 10)):
        image = torch.ones(1, 1, *size, dtype=torch.float64, requires_grad=True)
        output = F.conv2d(image, torch.ones(1, 1, kernel, kernel).double(), stride=stride, padding=padding)
        [looks] = torch.autograd.grad(output.sum(), image)
        assert layer.output_shape((1, *size)) == tuple(output.shape[1:])
        assert layer.max_overlap(size) == max(1, int(looks.max()))


@pytest.mark.parametrize(("side", "too_long"), [(16, 1.0199), (32, 1.0151)])
def test_a_constant_kernel_is_1_lipschitz_with_the_largest_overlap_and_not_with_the_mean(side, too_long) -> None:
    layer = lip.SpectralConv2d(1, 1, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.fill_(1 / 3)  # a row of nine elements has norm one
    norm = spectral_norm(dense_matrix(layer, (1, side, side)))
    assert norm <= 1
    mean = ((3 * side - 2) / side) ** 2  # mean number of windows per pixel
    assert norm * 3 / math.sqrt(mean) == pytest.approx(too_long, abs=1e-4)


LIMITS = [lip.BoundedInput, lip.SphereInput]
every_limit = pytest.mark.parametrize("limit", LIMITS)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


@every_limit
@every_precision
@pytest.mark.parametrize("size", [0.0, 1e-30, 3e38])
def test_no_output_norm_exceeds_the_limit(limit, dtype, size) -> None:
    x = size * torch.randn(20, 2, 3, 5, dtype=torch.float64).clamp(-1, 1).to(dtype)
    found = limit(3.0)(x)
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert float(found.double().flatten(1).norm(dim=1).max()) <= 3 * (1 + 4 * torch.finfo(dtype).eps)


def test_the_sphere_scales_small_examples_up_and_keeps_zeros() -> None:
    x = torch.tensor([[3e-20, 4e-20], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(lip.SphereInput(5.0)(x), torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]))
    assert lip.SphereInput(2.0).bound_backward(NormBound(1.0, (3,)), 0.1) == (math.inf, {})


@every_limit
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_an_example_that_is_not_finite_becomes_zeros_and_affects_no_other(limit, bad) -> None:
    x = torch.randn(3, 4)
    expected = limit(1.0)(x)
    x[1, 2] = bad
    x.requires_grad_()
    found = limit(1.0)(x)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found[1].tolist() == [0.0] * 4
    [gradient] = torch.autograd.grad(found.sum(), x)
    assert gradient[[0, 2]].isfinite().all()


ONE = NormBound(1.0, (4,))


def test_the_bounds_of_a_convolutional_net_are_those_worked_out_by_hand() -> None:
    model = nn.Sequential(
        *(lip.BoundedInput(1.0), lip.SpectralConv2d(2, 4, 3, padding=1), lip.Scale(1.3), lip.GroupSort2()),
        *(nn.MaxPool2d(2), lip.LayerCentering(1), nn.Flatten(), lip.SpectralLinear(36, 3)),
    )
    _, found = propagation.backward(model, NormBound(math.inf, (2, 6, 6)), math.sqrt(2))
    assert propagation.forward(model[:3], NormBound(9.0, (2, 6, 6))).norm == pytest.approx(1.3, rel=1e-5)
    assert [found[p] for p in model.parameters()] == pytest.approx([1.3 * 1.4142136] * 2, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        *((lambda limit=limit: limit(0.0), r"expected (a finite )?x0") for limit in LIMITS),
        (lambda: lip.SpectralLinear(0, 2), "in_features >= 1"),
        (lambda: lip.SpectralLinear(3, 2).bound_forward(NormBound(1.0, (2, 4))), r"takes 3 features .*shape \(2, 4\)"),
        (lambda: lip.SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (3, 8, 8))), "takes 2"),
        (lambda: lip.SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (2, 4, 8))), "smaller than a window"),
        (lambda: lip.SpectralConv2d(2, 4, kernel_size=0), "kernel_size >= 1"),
        (lambda: lip.SpectralConv2d(2, 4, 3, padding=-1), "padding >= 0"),
        (lambda: lip.Scale(math.inf), "factor=inf"),
        (lambda: lip.TokenMix(lip.GroupSort2()).bound_forward(ONE), r"\(tokens, channels\)"),
        (lambda: lip.MixerBlock(0, 4), "tokens >= 1"),
        (lambda: lip.MixerBlock(4, 6).bound_forward(NormBound(1.0, (4, 6))), "takes 6 maps of 4 positions"),
        (lambda: lip.LayerCentering(0), "axis 0 holds the examples"),
        (lambda: lip.LayerCentering(3).bound_forward(NormBound(1.0, (3, 4))), "no axis 3"),
        (lambda: lip.GroupSort2().bound_forward(NormBound(1.0, (3, 4))), "is odd"),
        (lambda: lip.TauCrossEntropy(tau=0.0), "finite tau > 0"),
        (lambda: lip.TauCrossEntropy(tau=1.0, classes=1), "classes >= 2"),
        (lambda: lip.TauBCE(tau=math.inf), "finite tau > 0"),
        (lambda: lip.HuberLoss(delta=0.0), "finite delta > 0"),
        (lambda: lip.TauCrossEntropy(tau=1.0, classes=3).lipschitz(-1.0), "logit_bound >= 0"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


Scores = list[float]


def tau_cross_entropy(tau: float) -> Callable[[Scores, int], float]:
    return lambda z, y: (math.log(sum(math.exp(tau * s) for s in z)) - tau * z[y]) / tau


def tau_bce(tau: float) -> Callable[[Scores, int], float]:
    return lambda z, y: math.log(1 + math.exp(-tau * (z[0] if y else -z[0]))) / tau


def huber(delta: float) -> Callable[[Scores, int], float]:
    return lambda z, y: (z[0] - y) ** 2 / 2 if abs(z[0] - y) < delta else delta * (abs(z[0] - y) - delta / 2)


# loss, number of scores, formula, constant
CASES = [
    (lip.TauCrossEntropy(tau=0.1), 10, tau_cross_entropy(0.1), 1.41421356),
    (lip.TauCrossEntropy(tau=20.0, classes=10), 10, tau_cross_entropy(20.0), 1.41421356),
    (lip.TauCrossEntropy(tau=1.0), 2, tau_cross_entropy(1.0), 1.41421356),
    (lip.TauBCE(tau=0.5), 1, tau_bce(0.5), 1.0),
    (lip.HuberLoss(delta=2.0), 1, huber(2.0), 2.0),
]
every_case = pytest.mark.parametrize(
    ("loss", "outputs", "formula", "constant"), CASES, ids=[f"{loss}-{outputs}" for loss, outputs, *_ in CASES]
)
every_loss = pytest.mark.parametrize(("loss", "outputs"), [case[:2] for case in CASES], ids=str)


def some(outputs: int, count: int = 64, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    return scale * torch.randn(count, outputs, dtype=torch.float64), torch.randint(max(2, outputs), (count,))


def gradients(loss: nn.Module, scores: Tensor, targets: Tensor, *, again: bool = False) -> Tensor:
    scores = scores if scores.requires_grad else scores.clone().requires_grad_()
    [rows] = torch.autograd.grad(loss(scores, targets).sum(), [scores], create_graph=again)
    return rows


def steepest(loss: nn.Module, scores: Tensor, targets: Tensor, reach: float = math.inf) -> float:
    """The largest gradient norm found by ascent from many starts, with scores in a ball."""

    def within(z: Tensor) -> Tensor:
        return z * (reach / z.norm(dim=1, keepdim=True)).clamp(max=1.0)

    scores = within(scores).requires_grad_()
    ascent = torch.optim.Adam([scores], lr=0.02 * min(reach, float(scores.detach().std())), maximize=True)
    found = 0.0
    for _ in range(200):
        norms = gradients(loss, scores, targets, again=True).norm(dim=1)
        found = max(found, float(norms.detach().max()))
        if not norms.requires_grad:
            break
        ascent.zero_grad()
        norms.sum().backward()
        ascent.step()
        with torch.no_grad():
            scores.copy_(within(scores))
    return found


@every_case
def test_a_loss_follows_its_formula(loss: nn.Module, outputs: int, formula: Callable, constant: float) -> None:
    scores, targets = some(outputs)
    expected = [formula(z.tolist(), int(y)) for z, y in zip(scores, targets, strict=True)]
    torch.testing.assert_close(loss(scores, targets), torch.tensor(expected, dtype=torch.float64))


@every_case
def test_ascent_reaches_the_constant_and_never_exceeds_it(loss, outputs, formula, constant) -> None:
    assert loss.lipschitz() == pytest.approx(constant, rel=1e-8)
    found = max(steepest(loss, *some(outputs, scale=scale)) for scale in (0.05, 2.0, 200.0))
    assert found <= loss.lipschitz() * (1 + 1e-12)
    assert found >= loss.lipschitz() * (1 - 1e-5)


@pytest.mark.parametrize(
    ("tau", "reach", "constant", "searched"),
    [(1.0, 1.0, 1.37702, 1.00934), (0.1, 1.0, 1.28980, 0.95662), (5.0, 1.0, 1.41408, 1.34999)],
)
def test_bounded_scores_tighten_the_cross_entropy(tau: float, reach: float, constant: float, searched: float) -> None:
    loss = lip.TauCrossEntropy(tau, classes=10)
    assert loss.lipschitz(logit_bound=reach) == pytest.approx(constant, abs=5e-6)
    assert searched - 1e-5 <= steepest(loss, *some(10, count=256), reach) <= loss.lipschitz(logit_bound=reach)


def test_a_smaller_bound_on_the_scores_gives_a_smaller_constant() -> None:
    loss = lip.TauCrossEntropy(tau=0.3, classes=10)
    constants = [loss.lipschitz(logit_bound=reach) for reach in (0.0, 0.1, 1.0, 10.0, 1e4, 1e300, math.inf)]
    assert (constants, constants[0]) == (sorted(constants), pytest.approx(math.sqrt(2) * 0.9))
    assert constants[-1] == loss.lipschitz() == math.sqrt(2)
    assert lip.TauCrossEntropy(tau=0.3).lipschitz(logit_bound=1.0) == math.sqrt(2)


@every_loss
def test_one_finite_loss_per_example_for_any_number_and_size_of_scores(loss: nn.Module, outputs: int) -> None:
    for count, scale in ((0, 1.0), (1, 1.0), (5, 0.0), (5, 1e6)):
        scores, targets = some(outputs, count, scale)
        losses = loss(scores.float(), targets)
        assert (losses.shape, losses.dtype) == ((count,), torch.float32)
        assert losses.isfinite().all()
        assert gradients(loss, scores, targets).isfinite().all()


@every_loss
def test_scores_and_targets_that_do_not_fit_are_refused(loss: nn.Module, outputs: int) -> None:
    scores, targets = some(outputs, 4)
    for wrong in (targets[:3], targets.unsqueeze(1)):
        with pytest.raises(ValueError, match="one target for each of 4 examples"):
            loss(scores, wrong)
    with pytest.raises(ValueError, match=r"expected one score|expected scores of shape"):
        loss(scores.repeat(1, 2) if outputs == 1 else scores[:, :1], targets)


@every_loss
def test_the_loss_of_a_target_that_is_no_class_is_nan_and_that_of_no_other(loss: nn.Module, outputs: int) -> None:
    numbers = outputs == 1 and isinstance(loss, lip.HuberLoss)
    scores, targets = some(outputs, 4)
    targets = targets.clamp(max=1)
    expected = gradients(loss, scores, targets)
    for wrong in (math.nan, math.inf) if numbers else (-1, max(2, outputs), -100, 0.5, math.nan, 1e30):
        bad = torch.cat([torch.tensor([wrong], dtype=torch.float64), targets[1:].double()])
        assert loss(scores, bad).isnan().tolist() == [True, False, False, False]
        rows = gradients(loss, scores, bad)
        assert rows[0].isnan().any()
        torch.testing.assert_close(rows[1:], expected[1:], rtol=0, atol=0)
