"""TRL's ``SFTTrainer`` with differential privacy: chat templates, losses of completions alone, adapters."""

# pyright: reportMissingImports=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
from dataclasses import dataclass
from typing import Any

from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from noisette.integrations.transformers import PrivateTrainer, PrivateTrainingArguments


@dataclass
class PrivateSFTConfig(SFTConfig, PrivateTrainingArguments):
    """TRL's ``SFTConfig`` with the budget of ``PrivateTrainingArguments``; a ``ValueError`` also for packed rows."""

    bucket_edges: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class PrivateSFTTrainer(PrivateTrainer, SFTTrainer):
    """TRL's ``SFTTrainer``, which trains as :class:`noisette.integrations.transformers.PrivateTrainer` does.

    Guarantee: that of ``PrivateTrainer``. Entropy and accuracy of training tokens, which TRL logs, are not computed.
    """

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # TRL's keeps sums over records, which it logs; the model's own is the same mean over the tokens of a record.
        of = Trainer if self.model.training or self._is_silent else SFTTrainer
        return of.compute_loss(self, model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch)
