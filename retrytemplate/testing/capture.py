"""The events of everything in the process, inside a block."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.observe import MemorySink

__all__ = ["capture_events"]


@contextmanager
def capture_events() -> Iterator[MemorySink]:
    """Keep the events of all templates, control objects, steps and workers inside the block.

    Objects that were created before the block are included.  An observer that is installed stays
    as it is.  Events that code gives to an observer of its own, such as ``observer.emit()``, go to
    that observer's sinks only.

    :returns: a context manager whose value is a ``MemorySink``: its newest 1,000 ``events``, the
        oldest first, and ``page()``.

    >>> from retrytemplate import RetryTemplate
    >>> template = RetryTemplate(name="parse")
    >>> with capture_events() as captured:
    ...     ok = template.outcome(int, "x").ok
    >>> [event.type for event in captured.events]
    ['retry.scheduled', 'retry.scheduled', 'call.failed']
    """
    from retrytemplate.listeners.defaults import add_default, remove_default
    from retrytemplate.observe import MemorySink, Observer

    sink = MemorySink()
    observer = Observer(sinks=[sink])
    add_default(observer)
    try:
        yield sink
    finally:
        remove_default(observer)
