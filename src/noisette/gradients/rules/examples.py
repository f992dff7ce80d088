"""Where the examples of a batch lie in the tensors of an operation."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """The number of examples, and the axis of the operation's output that holds them.

    A model may fold positions into that axis. Where ``inner`` is false the positions of one example stand together;
    where it is true, as after folding a (time, example, ...) tensor, the examples of one position do.

    A model may also change the order of its examples, as packing by length does. Rules need not care: what they return
    is put back in order by ``order``, the place of each example along the axis.
    """

    count: int
    axis: int = 0
    inner: bool = False
    order: Tensor | None = field(default=None, compare=False)

    def first(self, tensor: Tensor) -> Tensor:
        """The tensor with axes (example, position, ...), whatever the model's own order is.

        Raises:
            ValueError: that axis does not hold the examples.
        """
        size = tensor.shape[self.axis] if tensor.dim() > self.axis else 0
        if size == 0 or self.count == 0 or size % self.count:
            place = "first axis" if self.axis == 0 else f"axis {self.axis}"
            raise ValueError(
                f"the {place} of shape {tuple(tensor.shape)} does not hold the {self.count} examples of the batch"
            )
        if self.inner:
            folded = tensor.unflatten(self.axis, (size // self.count, self.count))
            return folded.movedim((self.axis + 1, self.axis), (0, 1))
        if self.axis == 0:
            return tensor.reshape(self.count, size // self.count, *tensor.shape[1:])
        folded = tensor.unflatten(self.axis, (self.count, size // self.count))
        return folded.movedim((self.axis, self.axis + 1), (0, 1))

    def sequences(self, tensor: Tensor) -> Tensor:
        """Axes (example, position, feature): every axis but the examples' and the last becomes positions."""
        return self.first(tensor).reshape(self.count, -1, tensor.shape[-1])

    def require_first(self, tensor: Tensor) -> None:
        """The first axis holds each example once, as operations on images demand.

        Raises:
            ValueError: it does not.
        """
        if self.axis or tensor.shape[0] != self.count:
            raise ValueError(f"its batch of {tensor.shape[0]} is not the batch of {self.count} examples")
