"""MiniGPT: train a GPT in JAX on the hardware you have."""

__version__ = "0.1.0"
