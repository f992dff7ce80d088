"""The network of the MNIST experiment with other numbers of hidden units, to be named in recipes."""

from __future__ import annotations

from functools import partial

from papers.networks import mlp1000

units_200, units_500, units_2000 = (partial(mlp1000, units=units) for units in (200, 500, 2000))
