"""Connections to frameworks; each module needs the extra of its name."""
