"""One function as the rule of several operands of an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from noisette.gradients.rules.registry import Operation, Rule, rule


def rule_per_operand(*operations: Operation, operands: Sequence[str]) -> Callable[[Rule], Rule]:
    """Register one function as the rule of each of these operands, where they share arguments and most of the work.

    The function is called as ``function(operand, examples, dy, ...)``, with the name of the operand whose gradients are
    wanted first, and is a rule as of :func:`noisette.rule` otherwise. The rule of an operand is named
    ``FUNCTION_OPERAND``, such as ``layer_norm_bias``.

    Raises:
        ValueError: an operand has a rule already, or the function does not take it.
    """

    def register(function: Rule) -> Rule:
        for operand in operands:
            bound = partial(function, operand)
            name = f"{function.__name__}_{operand}"
            vars(bound).update(__name__=name, __module__=function.__module__, __doc__=function.__doc__)
            rule(*operations, operand=operand)(bound)
        return function

    return register
