"""A run that is followed in its journal, for whoever is told of it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from attrs import Factory, define

from retrytemplate._internal.threads import Threads, ticks
from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.cli._run_words import suspicion
from retrytemplate.cli._screen import Screen
from retrytemplate.cli._signals import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from retrytemplate.batch import RunStatus

__all__ = ["JsonLines", "PlainLines", "Teller", "followed", "on_terminal"]

# Between plain lines, unless another tenth of the source is read.
SELDOM = 30.0


class Teller(Protocol):
    """Who is told how a run stands, again and again."""

    def __call__(self, run: RunStatus) -> None: ...

    def notice(self, text: str) -> None:
        """Say something beside it; a signal handler may."""
        ...


@contextmanager
def followed(find: Callable[[], RunStatus | None], tell: Teller, interval: float) -> Iterator[None]:
    """Tell in a thread how the run stands, meanwhile."""
    over = SimpleQueue[None]()

    def follow() -> None:
        for _ in ticks(over, interval):
            try:
                run = find()
                if run is not None:
                    tell(run)
            except JobRepositoryError:  # the run itself will say so
                continue
            except OSError:  # the output is closed: nobody is left to be told
                return

    threads = Threads("retrytemplate-bar", [follow])
    try:
        threads.start()
        yield
    finally:
        over.put(None)
        threads.wait()
    threads.check()


def on_terminal() -> bool:
    """Whether standard output is one that can draw."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


@define
class JsonLines:
    """A JSON object a line, where something has changed."""

    stream: TextIO = Factory(lambda: sys.stdout)
    _last: tuple[Any, ...] | None = None

    def __call__(self, run: RunStatus) -> None:
        seen = (run.run_id, run.state, run.updated)
        if seen != self._last:
            self._last = seen
            print(json.dumps(run.as_json()), file=self.stream, flush=True)

    def notice(self, text: str) -> None:
        """On standard error."""
        say(text)


@define
class PlainLines:
    """A line for each tenth of the source, and now and then."""

    screen: Screen = Factory(Screen)
    _tenth: int = 0
    _told: float | None = None

    def __call__(self, run: RunStatus) -> None:
        tenth = int(10 * (run.progress or 0))
        if self._told is None:
            self._told = run.now
        if tenth > self._tenth or run.now - self._told >= SELDOM:
            self._tenth, self._told = tenth, run.now
            self.screen.say(f"run {run.run_id}: {', '.join(_parts(run))}")
            self.screen.console.file.flush()

    def notice(self, text: str) -> None:
        """On standard error."""
        say(text)


def _parts(run: RunStatus) -> Iterator[str]:
    counts = run.counts
    if run.progress is not None:
        yield f"{run.progress:.0%}"
    yield from (f"{counts.read} read", f"{counts.written} written")
    for number, word in ((counts.filtered, "filtered"), (counts.dead, "dead-lettered")):
        if number:
            yield f"{number} {word}"
    if counts.retries:
        yield f"{counts.retries} retries"
    if run.careful:
        yield suspicion(run)
