"""The state of a model and its optimizer: captured as plain values, restored completely or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from noisette.ranks.shards import part_of, whole
from noisette.ranks.wrappers import canonical_name, canonical_parameters


def capture_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Weights, buffers and the optimizer's state, and the facts that :func:`check_fits` compares.

    Sharded tensors are put together, for which all ranks call this.
    """
    return {
        "weights": {name: whole(value) for name, value in _weights(model).items()},
        "optimizer": type(optimizer).__name__,
        "groups": names_of_groups(model, optimizer),
        "state": tree_map(whole, optimizer.state_dict()),
    }


def check_fits(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer) -> None:
    """Check that a captured state fits this model and this optimizer.

    Raises:
        ValueError: it does not; the first five problems are listed.
    """
    weights, own = state["weights"], _weights(model)
    problems = [f"{name}: in the checkpoint, but not in the model" for name in weights if name not in own]
    for name, value in own.items():
        if name not in weights:
            problems.append(f"{name}: in the model, but not in the checkpoint")
        elif (was := _form(weights[name])) != _form(value):
            problems.append(f"{name}: {was} in the checkpoint, {_form(value)} in the model")
    if state["optimizer"] != type(optimizer).__name__:
        problems.append(f"the optimizer was {state['optimizer']}, not {type(optimizer).__name__}")
    elif state["groups"] != names_of_groups(model, optimizer):
        problems.append("the optimizer held other parameters, or in another order")
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise ValueError("the checkpoint is of another model:\n  " + "\n  ".join(problems[:5] + more))


def restore_state(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer) -> None:
    """Restore what :func:`capture_state` took from a model and an optimizer like these.

    Raises:
        ValueError: they are not like them; nothing is changed then.
    """
    check_fits(state, model, optimizer)
    optimizer.load_state_dict(_in_parts(state["state"], optimizer))
    weights = state["weights"]
    own = model.state_dict()
    model.load_state_dict({name: part_of(weights[canonical_name(model, name)], like) for name, like in own.items()})


def _in_parts(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer with what has the shape of a sharded parameter sharded like it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def of(p: Tensor, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: part_of(value, p) if isinstance(value, Tensor) and value.shape == p.shape else value
            for name, value in values.items()
        }

    return {**state, "state": {k: of(parameters[int(k)], values) for k, values in state["state"].items()}}


def _weights(model: nn.Module) -> dict[str, Any]:
    """The weights and buffers by names that are the same however the model is wrapped."""
    return {canonical_name(model, name): value for name, value in model.state_dict().items()}


def names_of_groups(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters in each group of an optimizer; an empty one for what the model does not have."""
    names = {id(p): name for name, p in canonical_parameters(model)}
    return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
