"""Privacy accounting: events, the accountants that compute their cost, and the ledger. No module here imports torch."""

from noisette.accounting.calibrate import epsilon_for as epsilon_for
from noisette.accounting.calibrate import noise_multiplier_for as noise_multiplier_for
from noisette.accounting.calibrate import steps_for as steps_for
from noisette.accounting.closed_forms import GdpAccountant as GdpAccountant
from noisette.accounting.events import *  # noqa: F403
from noisette.accounting.interface import Accountant as Accountant
from noisette.accounting.interface import PrivacyCurve as PrivacyCurve
from noisette.accounting.interface import TradeOff as TradeOff
from noisette.accounting.ledger import Ledger as Ledger
from noisette.accounting.pld import PldAccountant as PldAccountant
from noisette.accounting.rdp import MomentsAccountant as MomentsAccountant
from noisette.accounting.rdp import RdpAccountant as RdpAccountant

__all__ = ["BallsInBinsGaussian", "BandedGaussian", "DiscreteGaussian", "DpAmount", "FixedSizeGaussian"]  # noqa: F405
__all__ += ["Gaussian", "GdpAccountant", "GroupPrivacy", "Laplace", "Ledger", "MomentsAccountant"]  # noqa: F405
__all__ += ["Neighbouring", "PldAccountant", "PoissonGaussian", "RdpAccountant", "RepeatAndSelect"]  # noqa: F405
__all__ += ["TradeOff", "TruncatedPoissonGaussian", "UserLevel", "ZcdpAmount", "epsilon_for"]  # noqa: F405
__all__ += ["noise_multiplier_for", "steps_for"]
