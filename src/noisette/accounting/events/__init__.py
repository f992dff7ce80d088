"""Events: which mechanism was released, with its parameters. Accountants compute what events cost."""

from noisette.accounting.events.event import Event as Event
from noisette.accounting.events.event import Events as Events
from noisette.accounting.events.event import Neighbouring as Neighbouring
from noisette.accounting.events.event import check_events as check_events
from noisette.accounting.events.event import in_whole_rounds as in_whole_rounds
from noisette.accounting.events.gaussian import BallsInBinsGaussian as BallsInBinsGaussian
from noisette.accounting.events.gaussian import BandedGaussian as BandedGaussian
from noisette.accounting.events.gaussian import FixedSizeGaussian as FixedSizeGaussian
from noisette.accounting.events.gaussian import Gaussian as Gaussian
from noisette.accounting.events.gaussian import Parts as Parts
from noisette.accounting.events.gaussian import PoissonGaussian as PoissonGaussian
from noisette.accounting.events.gaussian import Sampled as Sampled
from noisette.accounting.events.gaussian import TruncatedPoissonGaussian as TruncatedPoissonGaussian
from noisette.accounting.events.groups import GroupPrivacy as GroupPrivacy
from noisette.accounting.events.groups import StepRelease as StepRelease
from noisette.accounting.events.groups import UserLevel as UserLevel
from noisette.accounting.events.other import DiscreteGaussian as DiscreteGaussian
from noisette.accounting.events.other import DpAmount as DpAmount
from noisette.accounting.events.other import Laplace as Laplace
from noisette.accounting.events.other import ZcdpAmount as ZcdpAmount
from noisette.accounting.events.search import RepeatAndSelect as RepeatAndSelect
