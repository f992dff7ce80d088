"""Which kinds of public inputs a model takes: some models have rules on lengths, ranges or last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from noisette.core.randomness import seed_torch
from noisette.errors import PrivacyError
from noisette.validation.buffers import buffers_restored
from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import (
    EXAMPLE_KINDS,
    RANDOM_KINDS,
    SEED,
    Call,
    Kind,
    finite,
    of_the_form,
    output_tensors,
    public_batch,
    single_example,
)
from noisette.validation.seeded_randomness import randomness_seeded

GIVE_AN_EXAMPLE = (
    "Pass public inputs that the model accepts, in the form in which it is called: privatize(..., "
    "example=public_record)"
)


def with_usable_kinds(model: nn.Module, call: Call, public: object = None) -> Call:
    """The call with the kinds of public inputs that the model takes, the best first.

    Args:
        model: the user's model.
        call: a call of it, of which only shapes, types and plain arguments are read.
        public: the user's own public inputs, or ``None``.

    Raises:
        PrivacyError: the model fails on every kind, or its outputs are never finite, or it fails on one example alone.
    """
    example = replace(call, public=of_the_form(public, call) if public is not None else None)
    candidates = (*(EXAMPLE_KINDS if example.public is not None else ()), *RANDOM_KINDS)
    kinds, errors = _usable(model, example, candidates)
    if kinds:
        return replace(example, kinds=kinds)
    if any(type(value) in (list, tuple) for value in example.values):
        # Perhaps as long as the microbatch by chance, such as the size of an image in a microbatch of two.
        constants = replace(example, lists_are_rows=False)
        if constants.public is not None:
            constants = replace(constants, public=replace(constants.public, lists_are_rows=False))
        if kinds := _usable(model, constants, candidates)[0]:
            return replace(constants, kinds=kinds)
    other_form = (
        " The example given has another form than the model's arguments."
        if public is not None and example.public is None
        else ""
    )
    problem = f"the model fails on all of them: {errors[0]}" if errors else "its outputs are never finite"
    raise PrivacyError(
        f"the preflight cannot check the model with inputs that are {', '.join(kind.name for kind in candidates)}: "
        f"{problem}.{other_form} {GIVE_AN_EXAMPLE}"
    ) from (errors[0] if errors else None)


def _usable(
    model: nn.Module, example: Call, candidates: Sequence[Kind]
) -> tuple[tuple[Kind, ...], Sequence[Exception]]:
    """The kinds with which some output is finite, and the errors of the model with others.

    Raises:
        PrivacyError: the model fails on one example alone though not on the batch.
    """
    errors: list[Exception] = []
    kinds: list[Kind] = []
    for kind in candidates:
        try:
            if _is_finite(model, replace(example, kinds=(kind,))):
                kinds.append(kind)
        except (PrivacyError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever the user's code raises
            errors.append(error)
    return tuple(kinds), errors


def _is_finite(model: nn.Module, example: Call) -> bool:
    """Whether some example has finite outputs.

    Raises:
        PrivacyError: the model fails on one example alone though not on the batch.
        Exception: the model fails on the batch.
    """
    with randomness_seeded(model) as seed, buffers_restored(model), torch.no_grad(), DisableRandomness():
        seed_torch(SEED)
        batch = public_batch(example)
        seed()
        model(*batch.args, **batch.kwargs)
        return any(_output_is_finite(model, single_example(batch, i), seed) for i in (0, batch.examples - 1))


def _output_is_finite(model: nn.Module, alone: Call, seed: object) -> bool:
    try:
        output = model(*alone.args, **alone.kwargs)
    except (PrivacyError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise PrivacyError(
            f"the model fails on a batch of one example: {error}. If it computes statistics over the batch, which "
            "mixes examples, use GroupNorm or noisette.nn.PublicBatchNorm"
        ) from error
    return finite(tensor for tensor in output_tensors(output) if tensor.is_floating_point())
