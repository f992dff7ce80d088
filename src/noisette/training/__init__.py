"""Training by a recipe: building the model, the training loop, and the report of the run."""
