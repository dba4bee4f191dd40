"""The training step, the loop around it, and what it saves."""
