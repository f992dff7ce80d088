"""Privacy accounting: events, the accountants that compute their cost, and the ledger. No module here imports torch."""

from noisette.accounting.accountants.composition import NaiveComposition as NaiveComposition
from noisette.accounting.accountants.composition import StrongComposition as StrongComposition
from noisette.accounting.accountants.gdp import GdpAccountant as GdpAccountant
from noisette.accounting.accountants.interface import Accountant as Accountant
from noisette.accounting.accountants.interface import PrivacyCurve as PrivacyCurve
from noisette.accounting.accountants.moments import MomentsAccountant as MomentsAccountant
from noisette.accounting.accountants.pld import PldAccountant as PldAccountant
from noisette.accounting.accountants.rdp import RdpAccountant as RdpAccountant
from noisette.accounting.calibrate import delta_for as delta_for
from noisette.accounting.calibrate import epsilon_curve as epsilon_curve
from noisette.accounting.calibrate import epsilon_for as epsilon_for
from noisette.accounting.calibrate import noise_multiplier_for as noise_multiplier_for
from noisette.accounting.calibrate import sampling_rate_for as sampling_rate_for
from noisette.accounting.calibrate import steps_for as steps_for
from noisette.accounting.events import Event as Event
from noisette.accounting.events import Events as Events
from noisette.accounting.events import FixedSizeGaussian as FixedSizeGaussian
from noisette.accounting.events import Gaussian as Gaussian
from noisette.accounting.events import GroupPrivacy as GroupPrivacy
from noisette.accounting.events import Neighbouring as Neighbouring
from noisette.accounting.events import PoissonGaussian as PoissonGaussian
from noisette.accounting.events import RepeatAndSelect as RepeatAndSelect
from noisette.accounting.ledger.ledger import Ledger as Ledger
from noisette.accounting.noise_tail import TAIL_SHARE as TAIL_SHARE
from noisette.accounting.noise_tail import tail_delta as tail_delta
from noisette.accounting.noise_tail import tail_delta_of as tail_delta_of
