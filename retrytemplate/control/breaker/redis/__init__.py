"""Circuits that the processes of several machines share."""
