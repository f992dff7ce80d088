"""Training loops of other libraries with noisette's guarantee. Each module needs its library, an optional extra."""
