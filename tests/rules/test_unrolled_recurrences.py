"""One layer, unrolled by hand, against autograd. Whole layers in a graph are in ``test_traced_recurrent_layers``."""

from __future__ import annotations

import torch

from noisette.rules.recurrent import LayerWeights, Unrolled

B, T, FEATURES, UNITS = 3, 5, 4, 2


def test_values_and_gradients_of_a_plain_layer() -> None:
    x = torch.randn(B, T, FEATURES, dtype=torch.float64)
    state = torch.randn(B, UNITS, dtype=torch.float64, requires_grad=True)
    shapes = ((UNITS, FEATURES), (UNITS, UNITS), (UNITS,), (UNITS,))
    listed = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    weights = LayerWeights.of(listed, has_biases=True)
    unrolled = Unrolled.run(lambda products, _: (products[0].tanh(),), True, x, [state], weights)

    z = (x @ weights.w_ih.t() + listed[2] + listed[3]).detach().requires_grad_()
    h, states = state, []
    for t in range(T):
        h = (z[:, t] + h @ weights.w_hh.t()).tanh()
        states.append(h)
    expected = torch.stack(states, 1)
    torch.testing.assert_close(unrolled.values[0], expected.detach())

    dy = torch.randn_like(expected)
    of_z, of_state = torch.autograd.grad(expected, [z, state], dy)
    dz, *_, dstate = unrolled.gradients([weights.w_hh], [dy])
    torch.testing.assert_close(dz, of_z)
    torch.testing.assert_close(dstate, of_state)
