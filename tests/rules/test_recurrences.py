"""Closed-form gradients of each recurrence against autograd through its steps, which are implemented here again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from noisette.rules import recurrent as recurrences
from noisette.rules.recurrent import KnownStates
from rule_oracle import double

B, T, H, P = 3, 5, 4, 2

Step = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]  # z_t, a_t, states -> states after


def tanh(z: Tensor, a: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (torch.tanh(z + a),)


def relu(z: Tensor, a: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (torch.relu(z + a),)


def lstm(z: Tensor, a: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    i, f, g, o = (z + a).chunk(4, 1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(z: Tensor, a: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (z_r, z_u, z_n), (a_r, a_u, a_n) = z.chunk(3, 1), a.chunk(3, 1)
    u = torch.sigmoid(z_u + a_u)
    return ((1 - u) * torch.tanh(z_n + torch.sigmoid(z_r + a_r) * a_n) + u * states[0],)


STEPS: dict[str, tuple[Step, int]] = {"tanh": (tanh, 1), "relu": (relu, 1), "lstm": (lstm, 4), "gru": (gru, 3)}


def by_steps(
    step: Step, z: Tensor, states: Sequence[Tensor], w_hh: Tensor, w_hr: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """a_t for every t; h, and for an LSTM c, with axes (b, t, features)."""
    before, a, after = list(states), [], []
    for t in range(T):
        a.append(before[0] @ w_hh.t())
        h, *c = step(z[:, t], a[-1], before)
        before = [h if w_hr is None else h @ w_hr.t(), *c]
        after.append(before)
    return a, [torch.stack(values, 1) for values in zip(*after, strict=True)]


@pytest.mark.parametrize(
    ("kind", "arriving"),
    [
        *itertools.product([*STEPS, "projected lstm"], ["everywhere", "at the last step"]),
        ("lstm", "at c alone"),
        ("projected lstm", "at c alone"),
    ],
)
def test_gradients(kind: str, arriving: str) -> None:
    step, gates = STEPS[kind.removeprefix("projected ")]
    width = P if kind == "projected lstm" else H
    w_hh, w_hr = double(gates * H, width), double(P, H).requires_grad_() if width == P else None
    z = double(B, T, gates * H).requires_grad_()
    states = [double(B, n).requires_grad_() for n in ((width, H) if step is lstm else (width,))]
    a, values = by_steps(step, z, states, w_hh, w_hr)
    dy = [torch.randn_like(value) for value in values]
    if arriving == "at the last step":
        for gradient in dy:
            gradient[:, :-1] = 0
    first = 1 if arriving == "at c alone" else 0
    weights = [] if w_hr is None else [w_hr]
    truth = torch.autograd.grad(values[first:], [z, *a, *states, *weights], dy[first:])

    z, at_a = z.detach().requires_grad_(), torch.stack(a, 1).detach().requires_grad_()
    before = torch.cat([states[0].unsqueeze(1), values[0][:, :-1]], 1).detach()
    joined = getattr(recurrences, step.__name__)(KnownStates(z, at_a, before, states, values[0].detach(), w_hh, w_hr))
    torch.testing.assert_close(list(joined), values)
    found = torch.autograd.grad(joined[first:], [z, at_a, *states, *weights], dy[first:])
    torch.testing.assert_close(found, (truth[0], torch.stack(truth[1 : T + 1], 1), *truth[T + 1 :]))


@pytest.mark.parametrize("kind", STEPS)
def test_outputs_may_be_changed_in_place(kind: str) -> None:
    """The backward pass does not use the outputs, so they may be changed later."""
    _, gates = STEPS[kind]
    z, a = double(B, T, gates * H).requires_grad_(), double(B, T, gates * H)
    states = [double(B, H)] * (2 if kind == "lstm" else 1)
    output = double(B, T, H)

    def gradient(change: Callable[[Tensor], Tensor]) -> Tensor:
        view = output.clone().view(B, T, H)
        known = KnownStates(z, a, output, states, view, double(gates * H, H) * 0, None)
        return torch.autograd.grad(change(getattr(recurrences, kind)(known)[0]).sum(), z)[0]

    torch.testing.assert_close(gradient(lambda h: h.mul_(3)), gradient(lambda h: h * 3))
