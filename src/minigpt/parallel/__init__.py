"""One model on many devices: the mesh, who holds what, and the order of work."""
