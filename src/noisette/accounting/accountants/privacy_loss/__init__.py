"""Distributions of the privacy loss of single releases, and their composition along a contour."""
