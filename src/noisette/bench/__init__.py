"""The cost of privacy, measured: time and memory of private steps as ratios to plain training."""
