"""From text to batches: which rows a step sees depends on the seed and the step alone."""
