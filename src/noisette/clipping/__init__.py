"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""
