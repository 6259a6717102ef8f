"""Helpers that know nothing of retries."""
