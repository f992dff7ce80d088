"""What no example can exceed in a network whose layers stretch nothing: reaches, sensitivities, projections."""

from noisette.lipschitz.reach import Bounded as Bounded
from noisette.lipschitz.reach import Constrained as Constrained
from noisette.lipschitz.reach import Projection as Projection
from noisette.lipschitz.reach import Reach as Reach
from noisette.lipschitz.reach import Sensitivities as Sensitivities
from noisette.lipschitz.reach import is_bounded as is_bounded
from noisette.lipschitz.reach import is_constrained as is_constrained
from noisette.lipschitz.stock import Handler as Handler
from noisette.lipschitz.stock import Stretch as Stretch
from noisette.lipschitz.stock import register_bounds as register_bounds
