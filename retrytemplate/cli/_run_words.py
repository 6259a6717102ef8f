"""A run in words and colours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.batch import RunStatus

__all__ = ["STYLES", "UNDER_WAY", "named_parameters", "suspicion"]

STYLES = {
    "completed": "green",
    "failed": "red",
    "died": "red",
    "stopped": "yellow",
    "abandoned": "yellow",
}
UNDER_WAY = "cyan"


def suspicion(run: RunStatus) -> str:
    """What is known of the items that may have killed a process."""
    if run.suspects is None:
        return "careful: the items of a chunk are suspects"
    alone = "" if run.alone is None else f", item {run.alone} of the chunk alone"
    return f"careful: {run.suspects} suspects{alone}"


def named_parameters(run: RunStatus) -> Iterator[str]:
    """The run's parameters as one would type them."""
    for name, value in run.parameters.items():
        yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"
