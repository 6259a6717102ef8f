"""Helpers that do not depend on retries."""
