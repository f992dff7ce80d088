"""Privacy accounting: events, the accountants that compute their cost, and the ledger. No module here imports torch."""

from noisette.accounting.calibrate import epsilon_for as epsilon_for
from noisette.accounting.calibrate import noise_multiplier_for as noise_multiplier_for
from noisette.accounting.calibrate import steps_for as steps_for
from noisette.accounting.closed_forms import GdpAccountant as GdpAccountant
from noisette.accounting.events import BallsInBinsGaussian as BallsInBinsGaussian
from noisette.accounting.events import BandedGaussian as BandedGaussian
from noisette.accounting.events import DpAmount as DpAmount
from noisette.accounting.events import Event as Event
from noisette.accounting.events import Events as Events
from noisette.accounting.events import Gaussian as Gaussian
from noisette.accounting.events import Neighbouring as Neighbouring
from noisette.accounting.events import PoissonGaussian as PoissonGaussian
from noisette.accounting.events import RepeatAndSelect as RepeatAndSelect
from noisette.accounting.events import TruncatedPoissonGaussian as TruncatedPoissonGaussian
from noisette.accounting.events import UserLevel as UserLevel
from noisette.accounting.events import ZcdpAmount as ZcdpAmount
from noisette.accounting.interface import Accountant as Accountant
from noisette.accounting.interface import PrivacyCurve as PrivacyCurve
from noisette.accounting.interface import TradeOff as TradeOff
from noisette.accounting.ledger import Ledger as Ledger
from noisette.accounting.pld import PldAccountant as PldAccountant
from noisette.accounting.rdp import MomentsAccountant as MomentsAccountant
from noisette.accounting.rdp import RdpAccountant as RdpAccountant
