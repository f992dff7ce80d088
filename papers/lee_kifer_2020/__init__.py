"""Lee & Kifer 2020, "Scaling up differentially private deep learning with fast per-example gradient clipping"."""
