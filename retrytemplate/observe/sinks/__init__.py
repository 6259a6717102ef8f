"""Sinks: receivers of events."""
