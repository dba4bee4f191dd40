"""What a run will do, before it runs."""
