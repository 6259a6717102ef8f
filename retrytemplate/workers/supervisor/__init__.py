"""Supervised tasks: start, cancel, clean up, stop."""
