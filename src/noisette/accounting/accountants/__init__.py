"""The accountants, one module each, the interface that they share, and the registry that lists them."""
