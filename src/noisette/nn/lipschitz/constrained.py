"""What modules with a constrained parameter have in common."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette.lipschitz.project import project
from noisette.lipschitz.projections import Orthogonal
from noisette.lipschitz.protocols import Projection

ORTHOGONAL = Orthogonal()
_LEAST_NORM = 1e-3  # no bound behind a layer vanishes with its weights


class ConstrainedModule(nn.Module):
    """A module whose parameter is kept inside a set, and which knows how far its matrices can stretch a vector.

    The parameter itself is what is constrained: it is projected after each step, not reparametrised, so its gradient is
    the gradient. It is projected where the module is made and whenever a state dict is loaded.

    Args:
        projection: the map onto the set.
    """

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self.projection = projection
        self.norm = math.inf  # of its matrices, as certified last
        self.register_load_state_dict_post_hook(_projected)

    def matrices(self) -> Tensor:
        """The constrained parameter as a stack of matrices, shape (k, n, m), that writes through."""
        raise NotImplementedError

    def certified(self, norms: Tensor) -> None:
        """Take note of the norms of its matrices, shape (k,).

        Raises:
            ValueError: a norm is not finite.
        """
        if not norms.isfinite().all():
            raise ValueError(f"the weights of {type(self).__name__} have no finite norm: {norms.tolist()}")
        self.norm = max(_LEAST_NORM, float(norms.max()))


def _projected(module: nn.Module, _: object) -> None:
    project(module)
