"""Modules a user puts into a model."""

from noisette.nn.scattering import Scattering as Scattering
