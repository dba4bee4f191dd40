"""Ways to start a training run."""
