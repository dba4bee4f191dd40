"""What each command does: options in, text out. Work is done by the layers below."""
