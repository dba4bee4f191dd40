"""Checks of a machine or a cluster before a run: ``minigpt doctor``."""
