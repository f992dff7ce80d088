"""Per-example gradients: the tape, the autograd graph, and one rule for each operation."""
