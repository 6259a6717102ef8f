"""What ``retrytemplate dlq`` shows: the table of the letters, and the text of one."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from retrytemplate._internal.formatting import with_text
from retrytemplate.cli._screen import Screen, shortly
from retrytemplate.cli._words import ago, moment, span
from retrytemplate.errors import RecordedFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate.batch import DeadLetter

__all__ = ["DlqScreen"]

HEADS = ("id", "step", "key", "phase", "tries", "state", "age", "last failure")
NUMBERS = ("id", "tries", "age")
KEY = HEADS.index("key")
STYLES = {"replayed": "green", "discarded": "dim"}
KILLER = "red"


class DlqScreen(Screen):
    """Dead letters on standard output."""

    def list(self, page: Sequence[DeadLetter], *, more: bool) -> None:
        """A line for each letter, and what comes next."""
        if not page:
            self.say("There is no such letter.")
            return
        rows = [_cells(letter) for letter in page]
        self.table(HEADS, rows, map(_style, page), numbers=NUMBERS, name=KEY)
        if more:
            self.say(f"There are more: --after {page[-1].id}")

    def show(self, letter: DeadLetter) -> None:
        """All that is known of a letter."""
        self.say(f"dead letter {letter.id}", style="bold")
        self.facts(_facts(letter))
        self.attempts(letter.history)


def _cells(letter: DeadLetter) -> Iterator[str]:
    yield str(letter.id)
    yield letter.step
    yield letter.key
    yield letter.phase
    yield str(letter.attempts)
    yield letter.state
    yield span(time() - letter.created)
    yield letter.problem or shortly(RecordedFailure(letter.error_type, letter.error_message, None))


def _style(letter: DeadLetter) -> str | None:
    if letter.state == "open" and letter.phase == "crash":
        return KILLER
    return STYLES.get(letter.state)


def _facts(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    yield "step", f"{letter.step}, run {letter.run}"
    yield "item", f"{letter.source}, number {letter.number}"
    again = "" if letter.ordinal == 1 else f", number {letter.ordinal} of this key"
    yield "key", f"{letter.key}{again}"
    yield "payload", letter.payload if letter.replayable else f"{letter.payload} (its text alone)"
    yield "phase", letter.phase
    yield "failure", with_text(letter.error_type, letter.error_message)
    if letter.code_version is not None:
        yield "code", letter.code_version
    yield "state", letter.state
    yield "created", f"{moment(letter.created)}, {ago(time() - letter.created)}"
    for entry in letter.audit:
        why = f": {entry.why}" if entry.why else ""
        yield entry.action, f"{moment(entry.at)} by {entry.by}{why}"
    if letter.problem is not None:
        yield "problem", letter.problem
