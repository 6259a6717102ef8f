"""The kill switch and the store that a verb uses, and a view of the content."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.cli import stores, user_files
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.errors import CacheUnavailableError, SwitchStoreError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

    from retrytemplate.control import KillSwitch
    from retrytemplate.control.switch.model import (
        AuditRecord,
        Decision,
        SwitchScope,
        UnreadableRecord,
    )
    from retrytemplate.control.switch.report import ReportLine
    from retrytemplate.control.switch.store.base import (
        DurableSwitchStore,
        StoredRecord,
        SwitchStore,
    )

# Latest records that are searched for pending notifications.
AUDIT_SCAN = 1000


def options() -> ArgumentParser:
    """The options that name a switch, for the parsers of verbs."""
    parser = ArgumentParser(add_help=False, parents=[stores.options(of="the store of the switch")])
    parser.add_argument_group("or the switch of a program").add_argument(
        "--switch",
        metavar="FILE:NAME",
        help="a KillSwitch in a Python file, with its store, names, rules and notifiers",
    )
    return parser


@contextmanager
def open_switch(args: Namespace) -> Iterator[KillSwitch]:
    """The switch that the arguments name, or one on the store that they name; no file is created.

    :raises UsageError: they name none, or an invalid one.
    :raises CommandFailed: the rules reject the change, or the store cannot be read.
    """
    url = "" if args.switch else stores.store_url(args)
    try:
        with (
            _switch_of_file(args)
            if args.switch
            else _switch_on_store(url, args.store_prefix) as switch
        ):
            yield switch
    except (CacheUnavailableError, SwitchStoreError) as error:
        raise CommandFailed(stores.mask_error(error, url)) from None


@contextmanager
def _switch_of_file(args: Namespace) -> Iterator[KillSwitch]:
    from retrytemplate.control import KillSwitch

    if args.store:
        raise UsageError("--store: cannot be combined with --switch, which has a store")
    with redirect_stdout(sys.stderr):  # output of the user's code
        switch = user_files.load_object(args.switch, KillSwitch, "service.py:switch")
    if not switch.store.shared:
        raise UsageError(f"--switch: must have a store that processes share, got {switch!r}")
    with closing(switch.store), switch:
        yield switch


@contextmanager
def _switch_on_store(url: str, prefix: str) -> Iterator[KillSwitch]:
    from retrytemplate.control import KillSwitch

    family, driven = stores.parse_store_url(url)
    kind: Callable[[str, str], DurableSwitchStore]
    if family == stores.SQL:
        from retrytemplate.control.switch.store.sql import SQLSwitchStore as kind
    else:
        from retrytemplate.control.switch.store.redis import RedisSwitchStore as kind
    with stores.opened(url, partial(kind, driven, prefix)) as store:
        if family == stores.SQL:
            _check_file(driven)
        with KillSwitch(store) as switch:
            yield switch


def _check_file(url: str) -> None:
    """Raise for a missing file: a new empty store, for a mistyped path, would stop nothing."""
    from sqlalchemy import make_url

    from retrytemplate._storage.sql_engine import missing_file

    missing = missing_file(make_url(url))
    if missing:
        raise CommandFailed(f"there is no file {missing}")


@frozen
class Change:
    """A change in the store.

    :param notified: whether the notifiers received it.
    """

    record: AuditRecord
    notified: bool

    def as_json(self) -> dict[str, Any]:
        """The record, and whether the notifiers received it."""
        from retrytemplate.control.switch.codec import encode_record

        data: dict[str, Any] = json.loads(encode_record(self.record))
        del data["v"]
        return {**data, "notified": self.notified}


@frozen
class Unreadable:
    """A change that cannot be read."""

    record: UnreadableRecord
    notified: bool

    def as_json(self) -> dict[str, Any]:
        """Its number, and the reason why it cannot be read."""
        return {
            "number": self.record.number,
            "error": self.record.reason,
            "notified": self.notified,
        }


@frozen
class StoreView:
    """The content of a store at a moment.

    :param version: the number of changes; 0: the store was never used.
    :param audit: the latest changes, the newest first.
    """

    at: float
    version: int
    lines: tuple[ReportLine, ...] = ()
    audit: tuple[Change | Unreadable, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """The latest changes that can be read, the newest first."""
        return tuple(each for each in self.audit if isinstance(each, Change))

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The latest changes that cannot be read, the newest first."""
        return tuple(each for each in self.audit if isinstance(each, Unreadable))

    def find_change(self, record: AuditRecord) -> Change:
        """The change of this record."""
        same = (each for each in self.changes if each.record.id == record.id)
        return next(same, Change(record, notified=False))

    def find_line(self, scope: SwitchScope) -> ReportLine | None:
        """The stop of this scope."""
        return next((line for line in self.lines if line.entry.scope == scope), None)

    def decide(self, scopes: Iterable[SwitchScope], key: Any) -> Decision:
        """The decision of a check."""
        from retrytemplate.control.switch.transitions import decide

        entries = {line.entry.scope: line.entry for line in self.lines}
        return decide(entries, scopes, lambda: key, self.at)

    @property
    def pending(self) -> tuple[Change, ...]:
        """The changes that no notifier received yet, the newest first."""
        return tuple(each for each in self.changes if not each.notified)

    def as_json(self) -> dict[str, Any]:
        """The stops, the pending notifications and the unreadable records."""
        pending = self.pending
        oldest = max(0.0, self.at - pending[-1].record.at) if pending else None
        return {
            "at": self.at,
            "version": self.version,
            "stopped": [line_as_json(line) for line in self.lines],
            "pending": {"changes": len(pending), "oldest": oldest},
            "unreadable": [each.as_json() for each in self.unreadable],
        }

    def decision_as_json(self, decision: Decision) -> dict[str, Any]:
        """A decision, and the stop that caused it."""
        line = None if decision.entry is None else self.find_line(decision.entry.scope)
        return {
            "allowed": decision.allowed,
            "reason": decision.reason,
            "entry": None if line is None else line_as_json(line),
        }


def load_view(store: SwitchStore) -> StoreView:
    """The content of a store; nothing is written, no table is created.

    :raises SwitchStoreError: the store cannot be reached or read.
    """
    from retrytemplate.control.switch.cache import load_snapshot
    from retrytemplate.control.switch.report import report_lines
    from retrytemplate.control.switch.store.base import DurableSwitchStore

    now = time.time()
    if isinstance(store, DurableSwitchStore) and not store.is_made():
        return StoreView(now, 0)
    view, found = load_snapshot(store), store.records(limit=AUDIT_SCAN)
    lines = report_lines(view.entries.values(), now)
    return StoreView(now, view.version, lines, tuple(map(_change, found)))


def _change(stored: StoredRecord) -> Change | Unreadable:
    from retrytemplate.control.switch.codec import read_record
    from retrytemplate.control.switch.model import UnreadableRecord

    record = read_record(stored)
    if isinstance(record, UnreadableRecord):
        return Unreadable(record, stored.notified)
    return Change(record, stored.notified)


def line_as_json(line: ReportLine) -> dict[str, Any]:
    """The fields of a stop."""
    entry = line.entry
    return {
        "kind": entry.scope.kind,
        "name": entry.scope.name,
        "state": line.state,
        "share": entry.share,
        "next_shares": list(entry.canary[entry.step :]),
        "reason": entry.reason,
        "by": entry.by,
        "cause": entry.cause,
        "since": entry.since,
        "age": line.age,
        "until": entry.until,
        "left": line.left,
        "overdue": line.overdue,
        "when_expired": entry.when_expired,
    }
