"""What no example can exceed in a network whose layers stretch nothing: reaches, sensitivities, projections."""

from noisette.lipschitz.protocols import Bounded as Bounded
from noisette.lipschitz.protocols import Constrained as Constrained
from noisette.lipschitz.protocols import NormBound as NormBound
from noisette.lipschitz.protocols import Projection as Projection
from noisette.lipschitz.protocols import Sensitivities as Sensitivities
from noisette.lipschitz.protocols import is_bounded as is_bounded
from noisette.lipschitz.protocols import is_constrained as is_constrained
from noisette.lipschitz.torch_modules import Handler as Handler
from noisette.lipschitz.torch_modules import Stretch as Stretch
from noisette.lipschitz.torch_modules import register_bounds as register_bounds
