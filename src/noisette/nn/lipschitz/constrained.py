"""The base class of modules with a constrained parameter."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette.lipschitz.project import project
from noisette.lipschitz.projections import Orthogonal
from noisette.lipschitz.protocols import Projection

ORTHOGONAL = Orthogonal()
_LEAST_NORM = 1e-3  # so that no bound behind a layer becomes zero with its weights


class ConstrainedModule(nn.Module):
    """A module with a parameter that is constrained to a set of matrices of certified norm.

    The parameter itself is constrained, not reparametrised, so its gradient is the plain gradient. It is projected when
    the module is created, when a state dict is loaded, and after each step.

    Args:
        projection: the map onto the set.
    """

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self.projection = projection
        self.norm = math.inf  # bound on the spectral norms of the matrices, from the last projection
        self.register_load_state_dict_post_hook(_project_after_load)

    def matrices(self) -> Tensor:
        """The constrained parameter as a stack of matrices, shape (k, n, m): a view, so writes change the parameter."""
        raise NotImplementedError

    def set_certified_norms(self, norms: Tensor) -> None:
        """Store the largest of the certified norms of the matrices, shape (k,).

        Raises:
            ValueError: a norm is not finite.
        """
        if not norms.isfinite().all():
            raise ValueError(f"the weights of {type(self).__name__} have no finite norm: {norms.tolist()}")
        self.norm = max(_LEAST_NORM, float(norms.max()))


def _project_after_load(module: nn.Module, _: object) -> None:
    project(module)
