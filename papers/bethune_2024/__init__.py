"""Bethune et al. 2024, "DP-SGD Without Clipping: The Lipschitz Neural Network Way": figures and the tabular study."""
