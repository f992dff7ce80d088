"""Where the tensors of an operation hold the examples of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """The number of examples, and the axis of the operation's output that holds them.

    A model may fold positions into that axis. With b = 2 examples (A, B) of 3 positions, an axis of length 6 holds

    - A0 A1 A2 B0 B1 B2 if ``inner`` is false: the positions of one example are adjacent;
    - A0 B0 A1 B1 A2 B2 if ``inner`` is true, as after flattening a (time, example, ...) tensor.

    A model may also permute its examples, as packing by length does. ``order`` then holds the place of each example
    along the axis, or -1 where it is not known; that example's gradient is zero there. Rules ignore it: the gradients
    that they return are reordered afterwards.
    """

    count: int
    axis: int = 0
    inner: bool = False
    order: Tensor | None = field(default=None, compare=False)

    def first(self, tensor: Tensor) -> Tensor:
        """The tensor with axes (example, position, ...), whatever the model's own order of axes is.

        Raises:
            ValueError: that axis does not hold the examples.
        """
        size = tensor.shape[self.axis] if tensor.dim() > self.axis else 0
        if size == 0 or self.count == 0 or size % self.count:
            place = "first axis" if self.axis == 0 else f"axis {self.axis}"
            raise ValueError(
                f"the {place} of shape {tuple(tensor.shape)} does not hold the {self.count} examples of the batch"
            )
        positions = size // self.count
        if self.inner:
            return tensor.unflatten(self.axis, (positions, self.count)).movedim((self.axis + 1, self.axis), (0, 1))
        return tensor.unflatten(self.axis, (self.count, positions)).movedim((self.axis, self.axis + 1), (0, 1))

    def sequences(self, tensor: Tensor) -> Tensor:
        """Axes (example, position, feature): all axes but the examples' and the last are flattened to positions."""
        return self.first(tensor).reshape(self.count, -1, tensor.shape[-1])
