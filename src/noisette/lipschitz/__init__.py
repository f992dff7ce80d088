"""Sensitivities of networks with known Lipschitz constants: norm bounds, projections and noise allocation."""

from noisette.lipschitz.protocols import Bounded as Bounded
from noisette.lipschitz.protocols import Constrained as Constrained
from noisette.lipschitz.protocols import NormBound as NormBound
from noisette.lipschitz.protocols import Projection as Projection
from noisette.lipschitz.protocols import Sensitivities as Sensitivities
from noisette.lipschitz.protocols import is_bounded as is_bounded
from noisette.lipschitz.protocols import is_constrained as is_constrained
from noisette.lipschitz.torch_modules import BoundRule as BoundRule
from noisette.lipschitz.torch_modules import LipschitzFunction as LipschitzFunction
from noisette.lipschitz.torch_modules import register_bounds as register_bounds
