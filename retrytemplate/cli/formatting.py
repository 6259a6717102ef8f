"""Text for a terminal: escaped, truncated, and the state of a run in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from retrytemplate._internal.formatting import format_age, format_moment, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.batch import RunStatus

MINUTE = 60


def clean(text: str, encoding: str) -> str:
    r"""The text with all characters escaped that control a terminal, or that it cannot show.

    >>> clean("red \x1b[31m\nzu spät", "ascii")
    'red \\x1b[31m\\nzu sp\\xe4t'
    """
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def truncate_middle(text: str, width: int, mark: str) -> str:
    """A name in at most *width* cells of a terminal; a longer one keeps both ends.

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
    """A text in at most *width* cells of a terminal; a longer one keeps its beginning.

    >>> truncate_end("ConnectionError: the host does not answer", 20, "..")
    'ConnectionError: t..'
    """
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    return _prefix(text, width - len(mark)) + mark


def _prefix(text: str, width: int) -> str:
    """The longest prefix in at most *width* cells, without half a character."""
    from rich.cells import cell_len

    taken = text[: max(width, 0)]
    while cell_len(taken) > width:
        taken = taken[:-1]
    return taken


def format_clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds.

    >>> format_clock(0), format_clock(75.4), format_clock(90_061)
    ('0:00', '1:15', '25:01:01')
    """
    minutes, rest = divmod(int(max(seconds, 0)), MINUTE)
    hours, minutes = divmod(minutes, MINUTE)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_when(at: float, now: float) -> str:
    """A time with its distance from now.

    >>> format_when(1795273756.5651, 1795273881.5651)
    '2026-11-21 15:09:16.565 UTC, 2 min ago'
    """
    return f"{format_moment(at)}, {format_age(now - at)}"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun.

    >>> format_count(1, "retry", "retries"), format_count(1200, "letter")
    ('1 retry', '1,200 letters')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


STYLES = {
    "completed": "green",
    "failed": "red",
    "crashed": "red",
    "stopped": "yellow",
    "abandoned": "yellow",
}
RUNNING_STYLE = "cyan"


def describe_suspects(run: RunStatus) -> str:
    """The items that may have crashed a process."""
    if run.suspects is None:
        return "isolating: the items of a chunk are suspects"
    alone = "" if run.isolated_item is None else f", item {run.isolated_item} of the chunk alone"
    return f"isolating: {run.suspects} suspects{alone}"


def named_parameters(run: RunStatus) -> Iterator[str]:
    """The run's parameters in the form of the command line."""
    for name, value in run.parameters.items():
        yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"
