"""The views of a record that a recipe asks for: drawn anew in each step, or of fixed features, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from noisette.nn import MirrorAndShift, MirrorAverage, fixed_views, mean_over_stored_views, mean_over_views
from noisette.nn.views import Loss, StoredViewsAverage
from noisette.training.recipe import AugmentationSection


class Augmentation:
    """How the examples of a recipe are augmented.

    Args:
        section: the recipe's table.
        shape: that of an example.
        fixed: whether the first part of the model is fixed, so that the features of fixed views are computed once.

    Raises:
        ValueError: the examples are not images, or there is one fixed view only.
    """

    def __init__(self, section: AugmentationSection, shape: Sequence[int], *, fixed: bool) -> None:
        if section != AugmentationSection() and len(shape) != 3:
            raise ValueError(
                f"augmentation is for images of three axes, and an example has shape {tuple(shape)}; leave it out"
            )
        if fixed and section.moves and section.views == 1:
            raise ValueError(
                "the features of this model are fixed and computed once, for as many fixed views as augmentation.views "
                "says; ask for 2 or more"
            )
        self._section, self._fixed = section, fixed

    @property
    def stored(self) -> Callable[[Tensor], Tensor] | None:
        """Maps training images (n, ...) to the views whose features are stored, (n, views, ...), if there are any."""
        section = self._section
        if not (self._fixed and section.moves):
            return None
        return partial(fixed_views, views=section.views, flip=section.flip, shift=section.shift)

    @property
    def stored_for_tests(self) -> Callable[[Tensor], Tensor] | None:
        """The same for test images: an image and its mirror image."""
        if not (self._fixed and self._section.test_flip):
            return None
        return partial(fixed_views, views=2, flip=True, shift=0)

    def losses(self, loss: Loss) -> Loss:
        """The losses of examples of what was stored, averaged over their views; ``loss`` is that of one view."""
        section = self._section
        if not section.moves:
            return loss
        if self._fixed:
            return mean_over_stored_views(loss)
        return mean_over_views(loss, MirrorAndShift(flip=section.flip, shift=section.shift), section.views)

    def published(self, model: nn.Module) -> nn.Module:
        """The model as it is published."""
        return MirrorAverage(model) if self._section.test_flip else model

    def tested(self, trained: nn.Module, published: nn.Module) -> nn.Module:
        """What maps the stored test examples to scores, given the trained part of the model and the whole."""
        if not self._fixed:
            return published
        return StoredViewsAverage(trained) if self._section.test_flip else trained
