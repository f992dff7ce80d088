"""The processes of one run: what they share, what each one computes, and how they agree.

This is the only folder that imports ``torch.distributed``. All others see an :class:`Alone` or a :class:`Ranks` with
the same few methods, so there is one way through the code for one process and for many.
"""

from noisette.ranks.launch import Alone as Alone
from noisette.ranks.launch import AnyRanks as AnyRanks
from noisette.ranks.launch import in_step as in_step
from noisette.ranks.launch import launched as launched
from noisette.ranks.launch import ranks_of as ranks_of
from noisette.ranks.process_group import Ranks as Ranks
