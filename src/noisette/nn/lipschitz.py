"""Layers and losses with known Lipschitz constants, for networks that are trained without per-example clipping."""

from noisette.lipschitz.layers import *  # noqa: F403
