"""The table of metrics, their values in memory, and the exporters."""
