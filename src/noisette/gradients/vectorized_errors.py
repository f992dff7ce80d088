"""What to do about a loss that cannot be vectorised, in words."""

from __future__ import annotations

from types import TracebackType

from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from noisette.errors import PrivacyError

_WRITES = (
    "writes values of an example into a tensor that all examples share; a buffer or parameter must not depend on "
    "examples, and other tensors can be made from the input, as x.new_zeros(...)"
)
_STATISTICS = (
    "would update batch norm's running statistics from examples, which are saved without noise; convert the model "
    "with noisette.nn.convert_batch_norm, or put these modules into eval mode"
)
CALLS_FUNCTIONS = "higher order operator"  # in messages of torch's own too
_CONTROL_FLOW = (
    "uses an operator of torch that calls functions, as torch.cond does, and that cannot be followed; write a branch "
    "or a loop of Python, or choose by torch.where"
)
_CAUSES = {  # a part of PyTorch's message -> what it means
    **dict.fromkeys(
        (".item()", "Cannot access data pointer of Tensor"),
        "takes the value of one example as a Python number, as a branch on it, .item() or a shape from it does",
    ),
    "data-dependent control flow": (
        "branches on the values of an example, or on a random number; write the choice with torch.where"
    ),
    **dict.fromkeys(
        ("Batch norm got a batched tensor", "Expected more than 1 value per channel when training"),
        _STATISTICS,
    ),
    "match the broadcast shape": _WRITES,
    "inplace": _WRITES,
    "cannot register a hook": (
        "registers a hook on a tensor, which has no gradient of its own inside of vmap; change gradients by a "
        "torch.autograd.Function with a rule for vmap"
    ),
    "dynamic": "makes a tensor whose shape depends on the values of an example; use masks of a fixed shape",
    "autograd.Function": (
        "uses an autograd.Function that torch.func.vmap cannot take; give the class generate_vmap_rule = True, or draw "
        "random numbers that come from it in front of the call, and pass them as an argument with one row per example"
    ),
    CALLS_FUNCTIONS: _CONTROL_FLOW,
    "does not require grad": (
        "asks for a gradient with respect to values of an example by torch.autograd.grad; use torch.func.grad"
    ),
}
_PACKS = "packs a sequence by the length of an example; use a mask of a fixed shape"
_SIGNS = ("vmap", "functorch", "torch.func", "Batching rule", "BatchedTensor", *_CAUSES)
_WAY_OUT = (
    'Where that cannot be, pass separability="asserted" to privatize and call run.backward(losses) with the losses of '
    "a batch: you then assert yourself that examples are kept apart."
)


class NotVectorizedError(PrivacyError):
    """A loss that ``vmap`` cannot take, though one example at a time may be computed by it.

    Attributes:
        cause: the reason in words, without a way out.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause} {_WAY_OUT}")
        self.cause = cause


def explained(error: Exception, model: nn.Module) -> PrivacyError | None:
    """What an error of ``vmap`` means and what to do, or ``None`` for an error that has nothing to do with it."""
    message = str(error)
    packs = _packs(error.__traceback__)
    if not packs and not any(sign in message for sign in _SIGNS):
        return None
    cause = _PACKS if packs else next((cause for sign, cause in _CAUSES.items() if sign in message), None)
    where = _where(error.__traceback__, model)
    said = f"{where} {cause}." if cause else f"{where} cannot be vectorised: {message.splitlines()[0]}"
    return PrivacyError(said) if cause in (_STATISTICS, _CONTROL_FLOW) else NotVectorizedError(said)


def _packs(traceback: TracebackType | None) -> bool:
    """Whether the error arose where sequences are packed."""
    while traceback is not None:
        if traceback.tb_frame.f_code is pack_padded_sequence.__code__:
            return True
        traceback = traceback.tb_next
    return False


def _where(traceback: TracebackType | None, model: nn.Module) -> str:
    """The innermost module of the model in which the error arose, or the loss."""
    names = {id(module): name for name, module in model.named_modules()}
    found = "the loss"
    while traceback is not None:
        module = traceback.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            found = f"{names[id(module)] or 'the model'} ({type(module).__name__})"
        traceback = traceback.tb_next
    return found
