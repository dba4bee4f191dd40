"""A run behind an HTTP server."""
