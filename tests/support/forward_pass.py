"""A recorded forward pass, without a clip."""

from __future__ import annotations

from torch import Tensor, nn

from noisette.core.backward import ForwardPass, search
from noisette.core.forms import rewrites
from noisette.core.loss import OutsideTensors
from noisette.core.trace import Loss, Microbatch, Tape, record_losses


def recorded(model: nn.Module, loss: Loss, *batch: Tensor) -> tuple[ForwardPass, dict[str, Tensor]]:
    """The losses of a batch, computed for all examples at once, and the trainable parameters by name."""
    tape = Tape(model, rewrites())
    try:
        found = record_losses(tape, loss, Microbatch(batch, {}), OutsideTensors(), ())
    finally:
        tape.close()
    graph = search(found.losses, found.recording.uses, tape.parameters)
    return ForwardPass(found.losses, found.recording, graph), dict(tape.parameters)
