"""Connections, statements and operations that stores share."""
