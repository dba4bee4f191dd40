"""The mathematics of the model: no mesh, no collective, no file."""
