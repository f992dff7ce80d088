"""An LSTM from its equations, with weights that may differ from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def lstm_by_hand(x: Tensor, weights: Callable[[], Sequence[Tensor]]) -> Tensor:
    """States h_t (b, t, features) of an LSTM with zero initial states; ``weights`` is called for those of each step."""
    outputs, h, c = [], None, None
    for x_t in x.unbind(1):
        w_ih, w_hh, b_ih, b_hh = weights()
        h = x.new_zeros(len(x), w_hh.shape[1]) if h is None else h
        c = torch.zeros_like(h) if c is None else c
        i, f, g, o = (x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, 1)
