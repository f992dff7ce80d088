"""Norms in the place of batch norm against autograd by hand, and how they get there."""

import copy
from collections.abc import Callable
from itertools import cycle, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrizations

from engine_check import every_engine
from model_cases import squares as losses
from noisette import PerExampleClip, PrivacyError, explain, privatize
from noisette.clipping.engines import BookKeeping, PerExampleLoop
from noisette.core.clip import Engine
from noisette.nn import FrozenBatchNorm, PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm
from noisette.run.explain import sum_of_outputs
from norm_models import NETWORKS, Residual, network
from small_loop import clipped_by

every_network = pytest.mark.parametrize("name", NETWORKS)


def converted(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The network with public statistics, its public examples and six private ones."""
    model, public, x = network(name)
    return convert_batch_norm(model, to=PublicBatchNorm, public=public), public, x


class ByHand:
    """A model with batch norm that uses public statistics, differentiable by the preceding layer's weight only."""

    def __init__(self, model: nn.Module, public: Tensor) -> None:
        self.model = copy.deepcopy(model)
        self.in_public = True
        inputs: dict[nn.Module, Tensor] = {}
        for before, norm in pairwise(list(self.model.modules())):
            if isinstance(norm, _BatchNorm):
                layer = before if isinstance(before, nn.Linear) or hasattr(before, "kernel_size") else None
                if layer is not None:
                    layer.register_forward_pre_hook(lambda layer, args: inputs.update({layer: args[0]}))
                norm.forward = self._norm(norm, layer, inputs)
        self.model(public)
        self.in_public = False

    def _norm(self, norm: _BatchNorm, layer: Any, inputs: dict[nn.Module, Tensor]) -> Any:
        seen: dict[str, Tensor] = {}

        def forward(z: Tensor) -> Tensor:
            shape = [1, -1, *[1] * (z.dim() - 2)]
            if self.in_public:
                with torch.enable_grad():
                    public = z.detach() if layer is None else type(layer).forward(layer, inputs[layer].detach())
                    rows = public.transpose(0, 1).flatten(1)
                    seen["mean"] = rows.mean(1)
                    seen["variance"] = (rows - rows.mean(1, keepdim=True)).square().mean(1)
            mean, variance = seen["mean"].view(shape), seen["variance"].view(shape)
            hat = (z - mean) / (variance + norm.eps).sqrt()
            return hat if norm.weight is None else hat * norm.weight.view(shape) + norm.bias.view(shape)

        return forward

    def gradients(self, x: Tensor) -> Tensor:
        params = list(self.model.parameters())
        rows = [torch.autograd.grad(losses(self.model, row).sum(), params, retain_graph=True) for row in x.split(1)]
        return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def clipped(gradients: Tensor, bound: float) -> Tensor:
    return (gradients * (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)


def found(model: nn.Module, x: Tensor, bound: float, engine: Engine) -> Tensor:
    return clipped_by(model, bound, losses, (x,), engine=engine)


@every_network
@every_engine
def test_the_clipped_sum_and_outputs_are_those_of_each_example_by_hand(name: str, engine: Engine) -> None:
    model, public, x = network(name)
    by_hand = ByHand(model, public)
    truth, outputs = by_hand.gradients(x), by_hand.model(x)
    convert_batch_norm(model, to=PublicBatchNorm, public=public)
    torch.testing.assert_close(model(x), outputs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.eval()(x), outputs, rtol=1e-10, atol=1e-12)
    model.train()
    for bound in (float(2 * truth.norm(dim=1).max()), float(truth.norm(dim=1).median()), 1e-3):
        expected = clipped(truth, bound)
        torch.testing.assert_close(found(model, x, bound, engine), expected, rtol=1e-8, atol=1e-8 * bound)


@pytest.mark.parametrize("to", [PublicBatchNorm, PerExampleBatchNorm])
@every_network
def test_the_contribution_of_an_example_does_not_depend_on_the_others(name: str, to: Any) -> None:
    model, public, x = network(name)
    convert_batch_norm(model, to=to, public=public)
    one = found(model, x[:1], 1.0, PerExampleLoop())
    for batch in (torch.cat([x[:1], 1e6 * x[1:]]), torch.cat([x[:1], -x[1:]])):
        added = found(model, batch, 1.0, BookKeeping()) - found(model, batch[1:], 1.0, BookKeeping())
        torch.testing.assert_close(added, one, rtol=1e-6, atol=1e-9)
        assert torch.equal(model(batch)[0], model(x)[0])


def test_values_of_one_example_and_a_public_batch_together_are_those_of_batch_norm() -> None:
    torch.manual_seed(2)
    layer, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    public, x = torch.randn(9, 2, 5, 5), 3 * torch.randn(4, 2, 5, 5)
    together = [norm(layer(torch.cat([x[i : i + 1], public])))[:1] for i in range(4)]
    model = convert_batch_norm(nn.Sequential(layer, nn.BatchNorm2d(3)), to=PerExampleBatchNorm, public=public)
    torch.testing.assert_close(model(x), torch.cat(together), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.eval()(x), torch.cat(together), rtol=1e-4, atol=1e-5)


def test_statistics_are_recomputed_after_every_k_changes_of_the_weights() -> None:
    torch.manual_seed(1)
    public, model = torch.randn(6, 3), nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    convert_batch_norm(model, to=PublicBatchNorm, public=public, every=3)
    seen = []
    for _ in range(7):
        model(public)
        seen.append(model[1].running_mean.clone())
        with torch.no_grad():
            model[0].weight.add_(0.1)
    assert [not torch.equal(a, b) for a, b in pairwise(seen)] == [False, False, True, False, False, True]
    model.eval()(public)
    torch.testing.assert_close(model[1].running_mean, (public @ model[0].weight.t() + model[0].bias).mean(0))


def test_saved_statistics_are_those_of_the_saved_weights() -> None:
    model, _, x = converted("images")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    fresh = Residual().double()
    fresh.load_state_dict(saved)
    assert torch.equal(fresh.eval()(x), model.eval()(x))  # bit for bit, without any public batch


def test_evaluation_runs_no_public_pass_while_the_weights_do_not_change() -> None:
    model, _, x = converted("images")
    calls = []
    model.eval()(x)
    model.conv1.register_forward_hook(lambda *_: calls.append(1))
    first = model(x)
    assert calls == [1]
    with torch.no_grad():
        model.conv1.weight.add_(1)
    assert not torch.equal(model(x), first)
    assert len(calls) == 3


def test_a_copy_has_its_own_statistics() -> None:
    model, public, x = converted("images")
    before, copied = model(x), copy.deepcopy(model)
    with torch.no_grad():
        copied.conv1.weight.add_(1)
    moved = copied(x)
    assert torch.equal(model(x), before)
    assert not torch.equal(moved, before)
    truth = ByHand(_with_batch_norm(copied, "images"), public).model(x)
    torch.testing.assert_close(moved, truth, rtol=1e-10, atol=1e-12)


def test_explain_lists_norms_whose_statistics_are_constants() -> None:
    model, _, x = converted("behind an activation")
    [remark] = explain(model, sum_of_outputs, x).remarks
    assert remark.startswith("2  PublicBatchNorm does not directly follow a linear layer or a convolution")
    model, _, x = converted("images")
    assert explain(model, sum_of_outputs, x).remarks == ()


def test_shapes_other_than_the_public_one_are_refused() -> None:
    model, _, _ = converted("images")
    with pytest.raises(ValueError, match=r"examples of shape \(2, 8, 8\), but those of its public batch are .*\(2, 6"):
        model(torch.zeros(3, 2, 8, 8).double())


def test_a_norm_without_a_public_batch_says_so_and_one_that_is_called_twice_is_refused() -> None:
    with pytest.raises(RuntimeError, match="has no public batch yet"):
        nn.Sequential(nn.Linear(2, 2), PublicBatchNorm(2))(torch.zeros(3, 2))
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), norm, nn.Linear(2, 2), norm)
    with pytest.raises(ValueError, match="called twice in one pass of the public batch"):
        convert_batch_norm(model, to=PublicBatchNorm, public=torch.randn(5, 2))


def test_statistics_after_a_frozen_layer_are_constants() -> None:
    model, public, x = network("linear")
    model[0].weight.requires_grad_(False)
    truth = ByHand(model, public).model(x)
    convert_batch_norm(model, to=PublicBatchNorm, public=public)
    torch.testing.assert_close(model(x), truth, rtol=1e-10, atol=1e-12)
    reference = found(model, x, 1.0, PerExampleLoop())
    torch.testing.assert_close(found(model, x, 1.0, BookKeeping()), reference, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "size", "capture"),
    [("linear", 1, "eager"), ("linear", 12, "graph"), ("behind an activation", 1, "eager"), ("linear", 1, "graph")],
)
def test_all_microbatches_of_a_batch_have_the_statistics_of_its_weights(name: str, size: int, capture: Any) -> None:
    """Whichever microbatch a record is in, which depends on the others; with a bare clip likewise."""
    model, public, x = network(name)
    x = torch.cat([x, x + 1, 2 * x])[:12]
    convert_batch_norm(model, to=PublicBatchNorm, public=public)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    settings: dict[str, Any] = {"noise_multiplier": 1e-9, "sampling_rate": 1.0, "expected_batch_size": len(x)}
    with privatize(PerExampleClip(model, 0.5, capture=capture), optimizer, (x,), steps=3, **settings) as run:
        for batch in run.batches():
            expected = clipped(ByHand(_with_batch_norm(model, name), public).gradients(x), 0.5)
            for (part,) in batch.microbatches(size):
                run.accumulate(losses, part)
            optimizer.step()
            released = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            torch.testing.assert_close(released * len(x), expected, rtol=1e-6, atol=1e-7)
    total = clipped_by(model, 0.5, losses, *[(part,) for part in x.split(size)], capture=capture)
    expected = clipped(ByHand(_with_batch_norm(model, name), public).gradients(x), 0.5)
    torch.testing.assert_close(total, expected, rtol=1e-8, atol=1e-9)


def _with_batch_norm(model: nn.Module, name: str) -> nn.Module:
    plain, _, _ = network(name)
    plain.load_state_dict(model.state_dict())
    return plain


FROM_PUBLIC = [PublicBatchNorm, PerExampleBatchNorm]


@pytest.mark.parametrize("to", [*FROM_PUBLIC, FrozenBatchNorm])
def test_parameters_and_names_of_the_state_dict_stay(to: Any) -> None:
    model, public, _ = network("images")
    model.bn4.eval()
    before, parameters = model.state_dict(), dict(model.named_parameters())
    convert_batch_norm(model, to=to, public=public if to in FROM_PUBLIC else None)
    assert list(model.state_dict()) == list(before)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert isinstance(model.bn1, to)
    assert model.bn4.weight is None
    assert not model.bn4.training
    assert model.bn4.running_mean.dtype is torch.float64


@pytest.mark.parametrize("to", [nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d])
def test_norms_of_one_example_keep_the_affine_weights(to: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    weight = model[1].weight
    convert_batch_norm(model, to=to)
    assert isinstance(model[1], nn.InstanceNorm2d if to is nn.InstanceNorm2d else nn.GroupNorm)
    assert model[1].weight is weight
    assert getattr(model[1], "num_groups", 1) == 1
    assert model(torch.rand(6, 1, 5, 5)).shape == (6, 3, 3, 3)


def test_a_norm_itself_one_in_two_places_and_none_are_converted() -> None:
    for channels, groups in ((3, 1), (64, 4), (84, 4), (1024, 32)):  # of at least 16 channels
        assert convert_batch_norm(nn.BatchNorm2d(channels), to=nn.GroupNorm).num_groups == groups
    norm = convert_batch_norm(nn.BatchNorm1d(2), to=PublicBatchNorm, public=torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    torch.testing.assert_close(norm(torch.tensor([[1.0, 3.0]])), torch.zeros(1, 2))
    shared = nn.BatchNorm1d(2)
    model = convert_batch_norm(nn.Sequential(shared, nn.ReLU(), shared), to=nn.GroupNorm)
    assert model[0] is model[2]
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    before = [*model.modules()]
    assert convert_batch_norm(model, to=PublicBatchNorm, public=torch.zeros(4, 3)) is model
    assert [*model.modules()] == before
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", NETWORKS)
def test_frozen_statistics_are_those_of_the_model(name: str) -> None:
    model, public, x = network(name)
    for _ in range(3):
        model(public)
    truth = model.eval()(x)
    convert_batch_norm(model, to=FrozenBatchNorm)
    assert torch.equal(model.train()(x), truth)
    assert torch.equal(model.eval()(x), truth)


def test_frozen_statistics_may_be_those_of_a_public_batch() -> None:
    model, public, x = network("images")
    convert_batch_norm(model, to=FrozenBatchNorm, public=public)
    fixed = model.bn2.running_var.clone()
    other, _, _ = network("images")
    convert_batch_norm(other, to=PublicBatchNorm, public=public)
    torch.testing.assert_close(model(x), other(x))
    with torch.no_grad():
        model.conv1.weight.mul_(2)
    model(x)
    assert torch.equal(model.bn2.running_var, fixed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": PublicBatchNorm}, "PublicBatchNorm takes its statistics from public examples"),
        ({"to": PublicBatchNorm, "public": torch.zeros(1, 2, 6, 6)}, "at least two public examples"),
        ({"to": PublicBatchNorm, "public": torch.full((3, 2, 6, 6), torch.nan)}, "not finite"),
        ({"to": PublicBatchNorm, "public": (torch.zeros(3, 2), torch.zeros(4, 2))}, "3, 4 examples"),
        ({"to": nn.GroupNorm, "public": torch.zeros(3, 2, 6, 6)}, "normalises each example alone; leave public out"),
        ({"to": nn.Linear}, "expected `to` to be PublicBatchNorm"),
        ({"to": PublicBatchNorm, "public": torch.zeros(5, 3, 6, 6)}, r"take the public batch, of shape \(5, 3"),
        ({"to": nn.GroupNorm, "public": torch.zeros(1, 2, 6, 6), "every": 0}, "(?s)normalises.*at least two.*every"),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_is_changed(arguments: dict[str, Any], message: str) -> None:
    model = Residual()
    with pytest.raises(ValueError, match=message):
        convert_batch_norm(model, **arguments)
    assert isinstance(model.bn1, nn.BatchNorm2d)
    assert not model._forward_pre_hooks


def test_public_examples_that_are_private_records_are_refused() -> None:
    model, public, x = network("images")
    x[3] = public[2]
    with pytest.raises(PrivacyError, match=r"1 public examples are private records too \(the first is number 2\)"):
        convert_batch_norm(model, to=PublicBatchNorm, public=public, private=x)
    assert isinstance(model.bn1, nn.BatchNorm2d)


class NormAct(nn.BatchNorm2d):
    """In the manner of timm: the activation is part of the norm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


class Doubled(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class DoubledAgain(Doubled):
    """Adds nothing to a class that does."""


def with_part(name: str, part: nn.Module | nn.Parameter) -> Callable[[int], nn.Module]:
    def made(channels: int) -> nn.Module:
        norm = nn.BatchNorm2d(channels)
        setattr(norm, name, part)
        return norm

    return made


def hooked(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.register_forward_hook(lambda module, args, output: output.relu())
    return norm


def of_the_instance(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.forward = lambda input: input.relu()
    return norm


ADDING: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "activation": (NormAct, "NormAct has a forward of its own"),
    "modules": (with_part("act", nn.ReLU()), "modules of its own: act"),
    "forward": (Doubled, "Doubled has a forward of its own"),
    "inherited forward": (DoubledAgain, "DoubledAgain has a forward of its own"),
    "parameter": (with_part("heat", nn.Parameter(torch.ones(1))), "parameters or buffers of its own: heat"),
    "hook": (hooked, "BatchNorm2d has hooks"),
    "forward of the instance": (of_the_instance, "forward of its own"),
    "parametrization": (lambda n: parametrizations.weight_norm(nn.BatchNorm2d(n), dim=None), "of its own"),
    "lazy": (lambda channels: nn.LazyBatchNorm2d(), "LazyBatchNorm2d is lazy"),
}
TARGETS: list[dict[str, Any]] = [{"to": norm} for norm in (nn.GroupNorm, nn.InstanceNorm2d, FrozenBatchNorm)]
TARGETS.append({"to": PublicBatchNorm, "public": torch.randn(4, 2, 5, 5)})


@pytest.mark.parametrize(
    ("make", "message", "target"),
    [(*added, target) for added, target in zip(ADDING.values(), cycle(TARGETS))],
    ids=ADDING,
)
def test_what_adds_something_is_refused_by_name_and_nothing_is_changed(make, message, target) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Sequential(make(4)))
    before = [*model.modules()]
    with pytest.raises(ValueError, match=rf"1 batch norms do more.*\n  2\.0  .*{message}"):
        convert_batch_norm(model, **target)
    assert [*model.modules()] == before


def test_all_are_listed() -> None:
    with pytest.raises(ValueError, match=r"(?s)2 batch norms.*0  NormAct has.*1  Doubled has"):
        convert_batch_norm(nn.Sequential(NormAct(2), Doubled(2), nn.BatchNorm2d(2)), to=nn.GroupNorm)
    with pytest.raises(ValueError, match="the model itself  NormAct has a forward of its own"):
        convert_batch_norm(NormAct(2), to=FrozenBatchNorm)


class OtherDefaults(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3, momentum=0.01)
        self.label = "norm"

    def _check_input_dim(self, input: Tensor) -> None:
        pass


@pytest.mark.parametrize("make", [OtherDefaults, nn.SyncBatchNorm, nn.BatchNorm2d], ids=lambda c: c.__name__)
def test_what_adds_nothing_is_converted(make: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), make(4)).eval()
    model[1].running_var.fill_(2.0)
    x = torch.randn(3, 2, 6, 6)
    expected = nn.functional.batch_norm(model[0](x), torch.zeros(4), torch.full((4,), 2.0), eps=model[1].eps)
    convert_batch_norm(model, to=FrozenBatchNorm)
    assert isinstance(model[1], FrozenBatchNorm)
    torch.testing.assert_close(model(x), expected)


def test_a_lazy_norm_that_has_its_shape_is_one_of_torch() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.LazyBatchNorm2d())
    model(torch.ones(2, 2, 5, 5))
    assert isinstance(convert_batch_norm(model, to=nn.GroupNorm)[1], nn.GroupNorm)
