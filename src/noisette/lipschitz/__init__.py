"""Sensitivities of networks with known Lipschitz constants: norm bounds and projections."""

from noisette.lipschitz.projections import Constrained as Constrained
from noisette.lipschitz.propagation import Bounded as Bounded
from noisette.lipschitz.propagation import NormBound as NormBound
from noisette.lipschitz.propagation import Projection as Projection
from noisette.lipschitz.propagation import Sensitivities as Sensitivities
