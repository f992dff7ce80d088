"""Sensitivities of networks with known Lipschitz constants: norm bounds, projections and noise allocation."""

from noisette.lipschitz.projections import Constrained as Constrained
from noisette.lipschitz.propagation import Bounded as Bounded
from noisette.lipschitz.propagation import BoundRule as BoundRule
from noisette.lipschitz.propagation import LipschitzFunction as LipschitzFunction
from noisette.lipschitz.propagation import NormBound as NormBound
from noisette.lipschitz.propagation import Projection as Projection
from noisette.lipschitz.propagation import Sensitivities as Sensitivities
from noisette.lipschitz.propagation import is_bounded as is_bounded
from noisette.lipschitz.propagation import register_bounds as register_bounds
