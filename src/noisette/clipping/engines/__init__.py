"""Ways to compute the clipped sum; all give the same sum."""

from noisette.clipping.engines.book_keeping import BookKeeping as BookKeeping
from noisette.clipping.engines.multi_loss import MultiLoss as MultiLoss
from noisette.clipping.engines.per_example_loop import PerExampleLoop as PerExampleLoop
from noisette.clipping.engines.two_pass import TwoPass as TwoPass
from noisette.clipping.engines.two_passes import TwoPasses as TwoPasses
from noisette.clipping.engines.vmap import Vmap as Vmap
