"""Readers, the sources of a step's items: files, queries, iterables."""
