"""Replacing batch norm in the user's own model: weights and names are kept, and invalid arguments are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from noisette import PrivacyError
from noisette.nn import FrozenBatchNorm, PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm, to_batch_norm
from norm_models import NETWORKS, Residual, network

FROM_PUBLIC = [PublicBatchNorm, PerExampleBatchNorm]


@pytest.mark.parametrize("to", [*FROM_PUBLIC, FrozenBatchNorm])
def test_parameters_and_names_of_the_state_dict_stay(to: Any) -> None:
    model, public, _ = network("images")
    before = model.state_dict()
    parameters = dict(model.named_parameters())
    convert_batch_norm(model, to=to, public=public if to in FROM_PUBLIC else None)
    assert list(model.state_dict()) == list(before)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert isinstance(model.bn1, to)
    assert model.bn4.weight is None


@pytest.mark.parametrize("to", [nn.GroupNorm, nn.LayerNorm])
def test_norms_of_one_example_keep_the_affine_weights(to: Any) -> None:
    model, _, x = network("images")
    weight = model.bn1.weight
    convert_batch_norm(model, to=to)
    assert isinstance(model.bn1, nn.GroupNorm)
    assert model.bn1.weight is weight
    assert model.bn1.num_groups == 1
    assert model(x).shape == (6, 5)


def test_instance_norm_keeps_the_affine_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    weight = model[1].weight
    convert_batch_norm(model, to=nn.InstanceNorm2d)
    assert isinstance(model[1], nn.InstanceNorm2d)
    assert model[1].weight is weight


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (16, 1), (64, 4), (84, 4), (512, 32), (1024, 32)])
def test_groups_have_at_least_16_channels(channels: int, groups: int) -> None:
    norm = convert_batch_norm(nn.BatchNorm2d(channels), to=nn.GroupNorm)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


def test_the_model_may_be_a_batch_norm_itself() -> None:
    norm = convert_batch_norm(nn.BatchNorm1d(2), to=PublicBatchNorm, public=torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    assert isinstance(norm, PublicBatchNorm)
    torch.testing.assert_close(norm(torch.tensor([[1.0, 3.0]])), torch.zeros(1, 2))


def test_one_batch_norm_in_two_places_becomes_one_norm() -> None:
    shared = nn.BatchNorm1d(2)
    model = convert_batch_norm(nn.Sequential(shared, nn.ReLU(), shared), to=nn.GroupNorm)
    assert model[0] is model[2]


def test_models_without_batch_norm_are_not_changed() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = transformers.BertForSequenceClassification(config)
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


@pytest.mark.parametrize("name", NETWORKS)
def test_converting_back_keeps_every_bit_of_the_outputs(name: str) -> None:
    model, public, x = network(name)
    convert_batch_norm(model, to=PublicBatchNorm, public=public)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    truth = model.eval()(x)
    plain = to_batch_norm(model)
    assert torch.equal(plain(x), truth)
    assert not plain._forward_pre_hooks
    assert not plain._state_dict_pre_hooks
    fresh = NETWORKS[name].make().double()
    assert [type(part) for part in plain.modules()] == [type(part) for part in fresh.modules()]
    fresh.load_state_dict(plain.state_dict())
    assert torch.equal(fresh.eval()(x), truth)


def test_norms_whose_statistics_differ_by_example_cannot_be_converted_back() -> None:
    model, public, _ = network("images")
    convert_batch_norm(model, to=PerExampleBatchNorm, public=public)
    with pytest.raises(ValueError, match="bn1, bn2, bn3, bn4: the statistics differ from example to example"):
        to_batch_norm(model)


def test_modes_dtypes_and_frozen_weights_are_kept() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double().eval()
    model[1].weight.requires_grad_(False)
    convert_batch_norm(model, to=PublicBatchNorm, public=torch.randn(4, 2))
    assert not model[1].training
    assert not model[1].weight.requires_grad
    assert model[1].running_mean.dtype is torch.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": PublicBatchNorm}, "PublicBatchNorm takes its statistics from public examples"),
        ({"to": PublicBatchNorm, "public": torch.zeros(1, 2, 6, 6)}, "at least two public examples"),
        ({"to": PublicBatchNorm, "public": torch.full((3, 2, 6, 6), torch.nan)}, "not finite"),
        ({"to": PublicBatchNorm, "public": (torch.zeros(3, 2), torch.zeros(4, 2))}, "3, 4 examples"),
        ({"to": nn.GroupNorm, "public": torch.zeros(3, 2, 6, 6)}, "normalises each example alone; leave public out"),
        ({"to": nn.Linear}, "expected `to` to be PublicBatchNorm"),
        ({"to": PublicBatchNorm, "public": torch.zeros(3, 2, 6, 6), "every": 0}, "every"),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_is_changed(arguments: dict[str, Any], message: str) -> None:
    model = Residual()
    with pytest.raises(ValueError, match=message):
        convert_batch_norm(model, **arguments)
    assert isinstance(model.bn1, nn.BatchNorm2d)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?s)normalises each example.*at least two.*every"):
        convert_batch_norm(Residual(), to=nn.GroupNorm, public=torch.zeros(1, 2, 6, 6), every=0)


def test_public_batches_of_another_shape_are_refused_and_nothing_is_changed() -> None:
    model = Residual()
    with pytest.raises(ValueError, match=r"the model does not take the public batch, of shape \(5, 3, 6, 6\)"):
        convert_batch_norm(model, to=PublicBatchNorm, public=torch.zeros(5, 3, 6, 6))
    assert isinstance(model.bn1, nn.BatchNorm2d)
    assert not model._forward_pre_hooks


def test_public_examples_that_are_private_records_are_refused() -> None:
    model, public, x = network("images")
    x[3] = public[2]
    with pytest.raises(PrivacyError, match=r"1 public examples are private records too \(the first is number 2\)"):
        convert_batch_norm(model, to=PublicBatchNorm, public=public, private=x)
    assert isinstance(model.bn1, nn.BatchNorm2d)
