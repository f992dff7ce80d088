"""Abadi et al. 2016, "Deep Learning with Differential Privacy": figures 2 to 6."""
