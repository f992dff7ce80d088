"""A check that the loss of one example can be vectorised, with public inputs and a loss in the place of the user's."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from noisette.clipping.one_by_one import OneByOneWarning
from noisette.core.release import GradientBound
from noisette.core.trees import tensors
from noisette.validation.batch_norm import check_no_batch_norm
from noisette.validation.buffers import buffers_restored
from noisette.validation.checked_calls import attributes_restored
from noisette.validation.probe_inputs import Call


def check_vectorized(bound: GradientBound, example: Call) -> str:
    """How the model is called inside of ``run.accumulate``, with inputs like these: nothing to say if vectorised.

    Raises:
        PrivacyError: it cannot; names the module and what to do.
    """
    check_no_batch_norm(bound.model)
    with bound.set_aside(), attributes_restored(bound.model), buffers_restored(bound.model), torch.random.fork_rng():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", OneByOneWarning)
            bound.accumulate(sum_of_outputs, *example.args, **example.kwargs, public=())
        bound.pop_sums()
    for found in said:
        if found.category is not OneByOneWarning:
            warnings.warn_explicit(found.message, found.category, found.filename, found.lineno)
    return next((str(found.message) for found in said if found.category is OneByOneWarning), "")


def sum_of_outputs(model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """A loss for any model: all its outputs, added up."""
    outputs = [output for output in tensors(model(*args, **kwargs)) if output.is_floating_point()]
    return torch.stack([output.float().sum() for output in outputs]).sum()
