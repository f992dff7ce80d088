"""The processes of one run: what they share, what each one computes, and how they agree.

This is the only folder that imports ``torch.distributed``. All others see a :class:`~noisette.core.release.Alone` or a
:class:`~noisette.ranks.process_group.Ranks` with the same few methods, so there is one way through the code for one
process and for many.
"""

from noisette.core.release import Alone as Alone
from noisette.ranks.launch import AnyRanks as AnyRanks
from noisette.ranks.launch import in_step as in_step
from noisette.ranks.launch import launched as launched
from noisette.ranks.launch import ranks_of as ranks_of
from noisette.ranks.process_group import Ranks as Ranks
