"""The clipping rules and engines that a recipe can name. Reading the tables does not import torch.

A new rule or engine is one line here: recipe check, help texts, report and privacy statement take their words here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from noisette.accounting.registry import Entry


@dataclass(frozen=True)
class RuleEntry(Entry):
    """A clipping rule, which is made from its clipping norm.

    ``statement`` is the clause of the privacy statement that says what it does to the gradient of each example, and
    ``sensitivity`` the most that one record moves the sum of a batch. Both may use ``parameters``, ``groups``, ``norm``
    (of all groups together), ``each`` (of one group) and ``first`` (of the first step).
    """

    statement: str
    sensitivity: str = "{norm}"


_TOGETHER = "the gradient of each example, over all {parameters} trained parameters together, is "


CLIPPING_RULES: Mapping[str, RuleEntry] = {
    "flat": RuleEntry(
        "noisette:FlatClipping",
        "one norm over all parameters",
        _TOGETHER + "scaled to a Euclidean norm of at most {norm}",
    ),
    "per-layer": RuleEntry(
        "noisette:PerLayerClipping",
        "one norm for each layer, where clipping norm and noise multiplier are those of each layer",
        "the gradient of each example is scaled in each of {groups} layers to a Euclidean norm of at most {each}, "
        "which for all {parameters} trained parameters together gives at most {norm}",
    ),
    "automatic": RuleEntry(
        "noisette:AutomaticClipping",
        "one norm over all parameters, to which small gradients are scaled up as well",
        _TOGETHER + "multiplied by {norm} / (its Euclidean norm + 0.01), which leaves a norm of at most {norm}",
    ),
    "adaptive": RuleEntry(
        "noisette:AdaptiveClip",
        "one norm over all parameters, which follows the median of the gradient norms by a noised count",
        _TOGETHER + "scaled to a Euclidean norm of at most C; C is {first} in the first step, follows the median of "
        "these norms by means of released values alone, and is {norm} after the last step",
        "C",
    ),
}

ENGINES: Mapping[str, Entry] = {
    "book-keeping": Entry("noisette:engines.BookKeeping", "one backward pass"),
    "reweight-gp": Entry("noisette:engines.ReweightGP", "two passes, in the memory of plain training"),
    "per-example-loop": Entry("noisette:engines.PerExampleLoop", "one after the other (slow)"),
    "vmap": Entry("noisette:engines.Vmap", "gradients of single examples by torch.func"),
}
