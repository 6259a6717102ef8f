"""Events as lines of a file."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from math import isfinite
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import check_at_least_one, check_text
from retrytemplate.observe.event import Event
from retrytemplate.observe.sinks.pages import EventReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from retrytemplate.observe.sinks.pages import EventQuery

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
MODE = 0o666  # less the umask
BLOCK = 65_536  # bytes that are read at once


class JsonLinesSink(EventReader):
    """Appends each event to a file, as one line with a CloudEvent in JSON.

    :param path: of the file, which is created on the first event; its folder must exist.
    :param source: the ``source`` of the CloudEvents: a URI that identifies the program.
    :param max_bytes: before a write to a file of at least this size, the file is renamed to
        ``PATH.1``, which is replaced.  None: the file grows.
    :raises OSError: from ``emit``: the file cannot be written.

    Several processes and threads may write to one file: a write is one append of whole lines.  The
    file is opened for each write, so that a file that was renamed, by this sink or by logrotate, is
    left, and no descriptor stays open.  The data is not synced to disk.

    ``page`` reads the file, then ``PATH.1``, from the end.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from retrytemplate.observe import Event, JsonLinesSink
    >>> with TemporaryDirectory() as folder:
    ...     sink = JsonLinesSink(f"{folder}/events.jsonl", source="/shop")
    ...     sink.emit(Event(type="call.failed", subject="charge", severity=30, time=17.0))
    ...     print(Path(f"{folder}/events.jsonl").read_text()[:24])
    {"specversion":"1.0","id
    """

    blocking = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        source: str = "/python",
        max_bytes: int | None = None,
    ) -> None:
        check_text("source", source)
        if max_bytes is not None:
            check_at_least_one("max_bytes", max_bytes)
        self.path = os.fspath(path)
        check_text("path", self.path)
        self.source = source
        self.max_bytes = max_bytes

    def emit(self, event: Event) -> None:
        """Append the event."""
        self.emit_many([event])

    def emit_many(self, events: Sequence[Event]) -> None:
        """Append the events in one write."""
        text = b"".join(self._line(event) for event in events)
        if self.max_bytes is not None:
            self._rotate(self.max_bytes)
        with opened(self.path) as file:
            written = os.write(file, text)
            while written < len(text):  # a signal, or a disk that is nearly full
                written += os.write(file, text[written:])

    def _page(self, query: EventQuery) -> list[Event]:
        return query.select(self._backwards())

    def _backwards(self) -> Iterator[Event]:
        """The events of the file, then those of the file before it, the newest first."""
        for path in (self.path, f"{self.path}.1"):
            with suppress(FileNotFoundError), open(path, "rb") as file:
                for line in lines_backwards(file):
                    # A line that another program has written is left out.
                    with suppress(ValueError, RecursionError):
                        yield Event.from_cloudevent(json.loads(line))

    def _line(self, event: Event) -> bytes:
        made = event.to_cloudevent(self.source)
        try:
            text = json.dumps(made, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            made["data"] = {name: _as_json(value) for name, value in made["data"].items()}
            text = json.dumps(made, allow_nan=False, separators=(",", ":"))
        return f"{text}\n".encode()

    def _rotate(self, max_bytes: int) -> None:
        """Rename the file if it is large; one of several processes does."""
        from fcntl import LOCK_EX, LOCK_NB, flock

        with suppress(FileNotFoundError, BlockingIOError), opened(self.path, create=False) as file:
            if os.fstat(file).st_size < max_bytes:
                return
            # Not waited for: this thread may have interrupted itself.
            flock(file, LOCK_EX | LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(self.path)):
                os.replace(self.path, f"{self.path}.1")


def lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, the last one first, read in blocks."""
    start, rest = file.seek(0, os.SEEK_END), b""
    while start:
        end, start = start, max(0, start - BLOCK)
        file.seek(start)
        first, *lines = (file.read(end - start) + rest).split(b"\n")
        yield from filter(None, reversed(lines))
        rest = first
    if rest:
        yield rest


@contextmanager
def opened(path: str, *, create: bool = True) -> Iterator[int]:
    """The descriptor of a file to append to."""
    file = os.open(path, FLAGS if create else FLAGS & ~os.O_CREAT, MODE)
    try:
        yield file
    finally:
        os.close(file)


def _as_json(value: Any) -> Any:
    """The value; the text of one that JSON does not have."""
    if value is None or isinstance(value, bool | int | str):
        return value
    return value if isinstance(value, float) and isfinite(value) else str(value)
