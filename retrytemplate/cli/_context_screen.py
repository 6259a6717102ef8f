"""What ``retrytemplate context`` shows: the table of the keys, and the text of one."""

from __future__ import annotations

import json
from shlex import quote
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import with_text
from retrytemplate.cli import _screen
from retrytemplate.cli._screen import shortly
from retrytemplate.cli._words import ago, moment, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate.backends.inspection import Entry
    from retrytemplate.errors import RecordedFailure

__all__ = ["Screen"]

HEADS = ("key", "phase", "failed", "age/lease", "last failure")
NUMBERS = ("failed", "age/lease")
STYLES = {"held": "yellow", "lost": "red", "recovering": "red", "done": "green"}


class Screen(_screen.Screen):
    """The keys of a store on standard output."""

    def list(self, page: Sequence[Entry], *, more: bool) -> None:
        """A line for each entry, and what comes next."""
        if not page:
            self.say("No such key is kept.")
            return
        self.table(HEADS, map(_cells, page), map(_style, page), numbers=NUMBERS)
        if more:
            self.say(f"There are more: --after {quote(page[-1].key)}")

    def show(self, entry: Entry) -> None:
        """All that is kept under a key."""
        self.say(entry.key, style="bold")
        self.facts(_record_facts(entry))
        self.attempts(entry.record.history)


def _cells(entry: Entry) -> Iterator[str]:
    yield entry.key
    yield _state(entry)
    yield str(entry.record.failures)
    yield _age_or_lease(entry)
    yield entry.problem or shortly(entry.record.last)


def _state(entry: Entry) -> str:
    return "lost" if entry.lost else entry.phase


def _style(entry: Entry) -> str | None:
    return STYLES.get("held" if entry.held else _state(entry))


def _age_or_lease(entry: Entry) -> str:
    if entry.held and entry.lease_until is not None:
        return f"{span(entry.lease_until - entry.now)} left"
    return "" if entry.written is None else span(entry.now - entry.written)


def _record_facts(entry: Entry) -> Iterator[tuple[str, str]]:
    """What is said of a key before its attempts."""
    record, now = entry.record, entry.now
    yield "phase", _phase(entry)
    if entry.worker is not None and entry.lease_until is not None:
        until = f"{moment(entry.lease_until)}, {ago(now - entry.lease_until)}"
        yield ("held by" if entry.held else "was held by"), f"{entry.worker}, until {until}"
    if entry.problem is not None:
        yield "record", entry.problem
    most = "" if record.max_attempts is None else f", at most {record.max_attempts}"
    if record.attempts:
        yield "failed", f"{record.failures} of {record.attempts} attempts{most}"
    if record.last is not None:
        yield "last failure", _failure(record.last)
    for label, when in (
        ("written", entry.written),
        ("not before", record.not_before),
        ("forgotten", entry.expires),
    ):
        if when is not None:
            yield label, f"{moment(when)}, {ago(now - when)}"
    for label, value in (
        ("label", record.name),
        ("attributes", record.attributes),
        ("policy state", record.policy_state),
        ("backoff state", record.backoff_state),
    ):
        if value is not None:
            yield label, value if isinstance(value, str) else _json(value)
    yield "fence", str(entry.fence)


def _phase(entry: Entry) -> str:
    record = entry.record
    if entry.lost:
        return "attempting, lost: the worker did not report before its lease was over"
    if entry.phase == "idle" and (not record.verdict or record.gave_up):
        return "idle, no attempt left: the next delivery recovers"
    return entry.phase


def _failure(failure: RecordedFailure | None) -> str:
    told = []
    while failure is not None:
        told.append(with_text(failure.type_name, failure.message))
        failure = failure.cause
    return ", from ".join(told)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
