"""Davody et al. 2020, "On the effect of normalization layers on differentially private training": tables 2 to 7."""
