"""A recipe at work: builds the model, trains it, and reports what may be published about the run."""
