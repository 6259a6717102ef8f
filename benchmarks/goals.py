"""Performance goals of this library; the output names the measures that exceed them."""

from __future__ import annotations

RATIOS = {
    "success": 1.5,
    "success_async": 1.5,
    "call": 1.8,
    "block": 6.0,
    "two_failures": 3.2,
    "two_failures_async": 3.2,
    "exhausted": 4.2,
    "exhausted_async": 4.2,
}
"""To the hand-written loop, by key of cell."""

OWN_MULTIPLES = {"listener": 6.0, "stateful": 8.0}
"""To the library's own decorated success, by key of cell."""

IMPORT = 15.0
"""Milliseconds beyond the import of attrs."""

GARBAGE = 0.0
"""Objects left by a call, in every cell."""
