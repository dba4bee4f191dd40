"""Runs read back from their directories: pages, plots and comparisons. No jax, no Ray."""
