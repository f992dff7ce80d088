"""Faults of the seal: what a batch writes stays in the model, or random generators tell its size."""

from __future__ import annotations

import pytest
import torch

from noisette.run.model_snapshot import ModelSnapshot
from noisette.run.seal import Seal
from planted import Mutant, Patch

_STATE = "redteam/test_published_state.py"
_GENERATORS = "redteam/test_generator_state.py"


def replaced(target: str, value: object) -> Patch:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(target, value)

    return plant


def only_once(patch: pytest.MonkeyPatch) -> None:
    """What a microbatch wrote is there in the next one, and put back at the release alone."""
    whole = Seal.before_microbatch

    def before_microbatch(self: Seal) -> None:
        if self._before is None:
            whole(self)

    patch.setattr(Seal, "before_microbatch", before_microbatch)


def buffers_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelSnapshot, "put_back", lambda self: None)


MUTANTS = [
    Mutant(
        "tensors are not put back",
        "running statistics of the records are published with the weights",
        replaced("noisette.run.seal._Kept.put_back", lambda self: None),
        (f"{_STATE}::test_what_a_forward_pass_writes_is_put_back",),
    ),
    Mutant(
        "attributes are not put back",
        "counters, sets of ids and kept activations are published in a pickle of the model",
        buffers_alone,
        (f"{_STATE}::test_what_a_forward_pass_writes_is_put_back",),
    ),
    Mutant(
        "state is put back at the release alone",
        "a spectral norm has other weights in each microbatch, so that examples are not clipped under one function",
        only_once,
        (f"{_STATE}::test_spectral_norm_has_one_weight_for_all_microbatches",),
    ),
    Mutant(
        "written parameters are told by version counters",
        "a write through .data or NumPy publishes what the records hold",
        replaced("noisette.run.seal._Kept.is_changed", lambda self: self.tensor._version != self.copy._version),
        (f"{_STATE}::test_parameters_that_are_written_are_refused_and_put_back",),
    ),
    Mutant(
        "the mark of a large tensor is a plain sum",
        "values that change places tell a record",
        replaced("noisette.run.seal.content_mark", lambda tensor: tensor.detach().contiguous().view(torch.int32).sum()),
        (f"{_STATE}::test_what_is_too_large_for_a_copy_is_erased",),
    ),
    Mutant(
        "random generators go on from where the batch left them",
        "their state tells the number of microbatches",
        replaced("noisette.run.seal.seed_secretly", lambda generators: lambda: None),
        (f"{_GENERATORS}::test_no_generator_tells_the_batch",),
    ),
]
