"""Durations, moments and cut text for a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from retrytemplate._internal.formatting import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.batch import RunStatus

__all__ = [
    "RUNNING_STYLE",
    "STYLES",
    "clean",
    "describe_suspects",
    "format_age",
    "format_clock",
    "format_moment",
    "format_span",
    "named_parameters",
    "truncate_end",
    "truncate_middle",
]


MINUTE, HOUR, DAY = 60, 3600, 86_400


def clean(text: str, encoding: str) -> str:
    r"""The text with everything written out that a terminal would obey, or cannot show.

    >>> clean("red \x1b[31m\nzu spät", "ascii")
    'red \\x1b[31m\\nzu sp\\xe4t'
    """
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def truncate_middle(text: str, width: int, mark: str) -> str:
    """A name in so many cells of a terminal; a longer one has both of its ends.

    >>> truncate_middle("charge/s:order-4711", 12, "..")
    'charg..-4711'
    """
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    behind = (width - len(mark)) // 2
    ends = text[::-1]
    return truncate_end(text, width - behind, mark) + _prefix(ends, behind)[::-1]


def truncate_end(text: str, width: int, mark: str) -> str:
    """A text in so many cells of a terminal; of a longer one the beginning.

    >>> truncate_end("ConnectionError: the host does not answer", 20, "..")
    'ConnectionError: t..'
    """
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    return _prefix(text, width - len(mark)) + mark


def _prefix(text: str, width: int) -> str:
    """As many characters as go into so many cells; none is halved."""
    from rich.cells import cell_len

    taken = text[: max(width, 0)]
    while cell_len(taken) > width:
        taken = taken[:-1]
    return taken


def format_span(seconds: float) -> str:
    """So much time, in one unit.

    >>> [format_span(each) for each in (0.2, 59.7, 60, 7000, 86_400, 4e6, 1e300)]
    ['0 s', '59 s', '1 min', '1 h', '24 h', '46 d', '1.157407e+295 d']
    """
    for limit, unit, name in ((MINUTE, 1, "s"), (HOUR, MINUTE, "min"), (2 * DAY, HOUR, "h")):
        if seconds < limit:
            return f"{int(max(seconds, 0) // unit)} {name}"
    return f"{seconds // DAY:.7g} d"


def format_age(seconds: float) -> str:
    """How long something lies back, or is still to come.

    >>> format_age(125), format_age(-125)
    ('2 min ago', 'in 2 min')
    """
    return f"{format_span(seconds)} ago" if seconds >= 0 else f"in {format_span(-seconds)}"


def format_moment(seconds: float) -> str:
    """A time since the epoch as a date and a time.

    >>> format_moment(1795273756.5651)
    '2026-11-21 15:09:16.565 UTC'
    """
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # no year that a calendar has
        return f"{seconds:g} s after 1970"
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03} UTC"


def format_clock(seconds: float) -> str:
    """So much time as hours, minutes and seconds.

    >>> format_clock(0), format_clock(75.4), format_clock(90_061)
    ('0:00', '1:15', '25:01:01')
    """
    minutes, rest = divmod(int(max(seconds, 0)), MINUTE)
    hours, minutes = divmod(minutes, MINUTE)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


STYLES = {
    "completed": "green",
    "failed": "red",
    "crashed": "red",
    "stopped": "yellow",
    "abandoned": "yellow",
}
RUNNING_STYLE = "cyan"


def describe_suspects(run: RunStatus) -> str:
    """What is known of the items that may have killed a process."""
    if run.suspects is None:
        return "isolating: the items of a chunk are suspects"
    alone = "" if run.isolated_item is None else f", item {run.isolated_item} of the chunk alone"
    return f"isolating: {run.suspects} suspects{alone}"


def named_parameters(run: RunStatus) -> Iterator[str]:
    """The run's parameters as one would type them."""
    for name, value in run.parameters.items():
        yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"
