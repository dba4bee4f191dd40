"""Text from a trained model."""
