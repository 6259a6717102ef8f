"""The isolation gate: a fair shared/exclusive lock for attempts that may crash their process.

An attempt enters shared, beside others. An attempt that is suspected of crashes enters exclusively:
if the process crashes then, no other attempt can be the cause.
"""
