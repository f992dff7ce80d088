"""Ways to compute the clipped sum; all give the same sum."""

from noisette.clipping.engines.book_keeping import BookKeeping as BookKeeping
from noisette.clipping.engines.book_keeping import Reweight as Reweight
from noisette.clipping.engines.per_example_loop import Loop as Loop
from noisette.clipping.engines.per_example_loop import MultiLoss as MultiLoss
from noisette.clipping.engines.vmap import Vmap as Vmap
