"""A recorded forward pass, without a clip."""

from torch import Tensor, nn

import noisette.rules  # noqa: F401 - registers them
from noisette.core.loss import Loss, Microbatch, ModelBuffers, OutsideTensors
from noisette.core.trace import ForwardPass, TrainedModel, record_losses


def recorded_losses(model: nn.Module, loss: Loss, *batch: Tensor) -> ForwardPass:
    """The losses of a batch, computed for all examples at once, and what was recorded."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parts = TrainedModel(model, trained, ModelBuffers(model), OutsideTensors())
    return record_losses(loss, parts, Microbatch(batch, {}))


def recorded(model: nn.Module, loss: Loss, *batch: Tensor) -> tuple[ForwardPass, dict[str, Tensor]]:
    """The forward pass of a batch, and the trainable parameters by name."""
    return recorded_losses(model, loss, *batch), {n: p for n, p in model.named_parameters() if p.requires_grad}
