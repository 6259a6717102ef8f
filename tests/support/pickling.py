"""A state on its way to another process."""

from __future__ import annotations

import json
from typing import Any


def restored(state: Any) -> Any:
    """The state after a conversion to strict JSON and back; it must be equal."""
    copy = json.loads(json.dumps(state, allow_nan=False))
    assert copy == state
    return copy
