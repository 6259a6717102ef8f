"""The table that ``retrytemplate outbox list`` prints."""

from __future__ import annotations

import json
from time import time
from typing import TYPE_CHECKING

from retrytemplate.cli._screen import Screen
from retrytemplate.cli._words import span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate.batch import UnsentMessage

__all__ = ["OutboxScreen"]

HEADS = ("number", "step", "run", "age", "payload")
NUMBERS = ("number", "run", "age")
STEP = HEADS.index("step")
DAMAGED = "red"


class OutboxScreen(Screen):
    """Messages that wait, on standard output."""

    def list(self, page: Sequence[UnsentMessage], *, count: int, more: bool) -> None:
        """A line for each message, and how to see the others."""
        if not page:
            self.say("No message waits.")
            return
        styles = [None if each.problem is None else DAMAGED for each in page]
        self.table(HEADS, map(_cells, page), styles, numbers=NUMBERS, name=STEP)
        if more:
            self.say(f"{len(page)} of {count} messages; more: --after {page[-1].number}")


def _cells(message: UnsentMessage) -> Iterator[str]:
    yield str(message.number)
    yield message.step
    yield str(message.run)
    yield span(time() - message.created)
    yield message.problem or json.dumps(message.payload, ensure_ascii=False)
