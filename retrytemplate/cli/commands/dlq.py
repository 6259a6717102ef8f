"""The command ``retrytemplate dlq``."""

from __future__ import annotations

import sys
from time import time
from typing import TYPE_CHECKING, Any

from attrs import asdict

from retrytemplate._internal.formatting import format_moment, format_span, with_text
from retrytemplate.batch.journal.rows import PHASES, STATES
from retrytemplate.cli import stores, user_files
from retrytemplate.cli.arguments import (
    add_limit,
    add_step,
    add_verbs,
    current_user,
    row_number,
    stored_text,
    text,
)
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.cli.formatting import format_count, format_when
from retrytemplate.cli.tables import Listing, one_line, print_item, print_result
from retrytemplate.errors import RecordedFailure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from retrytemplate.batch import DeadLetter, DeadLetters, ReplayReport

ANY = "any"
# Largest number of failures of a replay that are printed; the letters have all of them.
SHOWN = 20

DESCRIPTION = """\
List and show the dead letters of chunk steps: failed items with their payload and the history of
their attempts.  Replay them after the cause is fixed, or discard them.
"""

EXITS = {1: "the store cannot be reached, has no such letter or run, or a replay failed"}

LIST_EPILOG = f"""\
examples:
  retrytemplate dlq list --store sqlite:///jobs.db
  retrytemplate dlq list --step reprice-orders --error PriceError
  retrytemplate dlq list --state any --after 17 --limit 200
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate dlq list --json

The table truncates text that is too long for the terminal; show and --json do not.
"""

SHOW_EPILOG = """\
examples:
  retrytemplate dlq show 17 --store sqlite:///jobs.db
  retrytemplate dlq show 17 --json
"""

DISCARD_EPILOG = """\
examples:
  retrytemplate dlq discard 17 18 --reason "test orders" --store sqlite:///jobs.db
  retrytemplate dlq discard 17 --by ada --reason "paid by hand" --json

A discarded letter stays in the journal, with the operator, time and reason.  Discarding it again
changes nothing; a replayed letter is not discarded.
"""

EXPORT_EPILOG = """\
examples:
  retrytemplate dlq export --store sqlite:///jobs.db > letters.jsonl
  retrytemplate dlq export --state any --phase write

One letter per line, as JSON with all its fields.  A summary goes to standard error.
"""

REPLAY_EPILOG = """\
examples:
  retrytemplate dlq replay job.py:step
  retrytemplate dlq replay job.py:step 17 18 --by ada
  retrytemplate dlq replay job.py:step --error PriceError --json

Each item of an open letter is processed and written as if it were read again, in one transaction
with its letter: a letter is replayed once.  An item that fails again stays open, with the new
attempts in its history.  Items that crashed their process are replayed only if their letters are
named.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "list, show, replay and discard dead letters"
    verbs = add_verbs(subparsers, "dlq", does, DESCRIPTION, EXITS)
    listing = verbs.add("list", "list the letters", LIST_EPILOG, stores.journal_options())
    _add_filters(listing)
    add_limit(listing, "letters", after="ID")
    showing = verbs.add("show", "show all facts of a letter", SHOW_EPILOG, stores.journal_options())
    showing.add_argument("id", type=row_number, metavar="ID")
    discarding = verbs.add(
        "discard",
        "close letters without a replay",
        DISCARD_EPILOG,
        stores.journal_options(),
    )
    discarding.add_argument("ids", type=row_number, nargs="+", metavar="ID")
    discarding.add_argument(
        "--by", metavar="NAME", help="the operator (default: the user who is logged in)"
    )
    discarding.add_argument("--reason", required=True, metavar="TEXT", help="stored with it")
    does = "write letters as lines of JSON"
    _add_filters(verbs.add("export", does, EXPORT_EPILOG, stores.journal_options()))
    does = "process and write the items of open letters"
    _add_replaying(verbs.add("replay", does, REPLAY_EPILOG))


def _add_filters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("filters").add_argument
    add("--step", type=stored_text, metavar="NAME", help="only those of this step")
    add("--run", type=row_number, metavar="RUN", dest="of_run", help="only those of this run")
    add(
        "--state",
        choices=(*STATES, ANY),
        default="open",
        help="only those in this state (default: %(default)s)",
    )
    _add_common_filters(add)
    add("--phase", choices=PHASES, help="only those whose last failure was in this phase")


def _add_common_filters(add: Any) -> None:
    of = "only those whose last failure was of this type"
    add("--error", type=stored_text, metavar="TYPE", help=of)
    add("--key", type=text, metavar="KEY", help="only those of the item with this key")


def _add_replaying(parser: argparse.ArgumentParser) -> None:
    add_step(parser, "use replay_async(), if asynchronous components are not detected")
    add = parser.add_argument
    add("ids", type=row_number, nargs="*", metavar="ID", help="only these letters")
    _add_common_filters(add)
    add("--by", type=text, metavar="NAME", help="the operator (default: the user who is logged in)")


def run(args: argparse.Namespace) -> int:
    """List, show, discard, export or replay and return the exit code."""
    from retrytemplate.batch import DeadLetters

    if args.action == "replay":
        return _replay(args)
    does = {"list": _list, "show": _show, "discard": _discard, "export": _export}[args.action]
    with stores.open_journal(args) as repository:
        stores.check_run_filter(args, repository)
        return does(args, DeadLetters(repository))


def _filters(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "step": args.step,
        "run": args.of_run,
        "state": None if args.state == ANY else args.state,
        "error": args.error,
        "key": args.key,
        "phase": args.phase,
    }


def _list(args: argparse.Namespace, letters: DeadLetters) -> int:
    found = letters.page(after=args.after, limit=args.limit + 1, **_filters(args))
    LETTERS.print(args, found)
    return 0


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {name: value for name, value in letter.as_json().items() if name != "history"}


def _show(args: argparse.Namespace, letters: DeadLetters) -> int:
    letter = letters.find(args.id)
    if letter is None:
        raise CommandFailed(f"there is no dead letter {args.id}")
    print_item(args, letter, f"dead letter {letter.id}", _facts(letter), letter.history)
    return 0


def _discard(args: argparse.Namespace, letters: DeadLetters) -> int:
    try:
        done = letters.discard(args.ids, by=current_user(args.by), reason=args.reason)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    again = f", {format_count(len(done.before), 'letter')} before" if done.before else ""
    number = format_count(len(done.discarded), "letter")
    print_result(args, asdict(done), f"{number} discarded{again}")
    if done.replayed:
        raise CommandFailed(f"replayed already: {_ids(done.replayed)}")
    if done.unknown:
        raise CommandFailed(f"there is no dead letter {_ids(done.unknown)}")
    return 0


def _export(args: argparse.Namespace, letters: DeadLetters) -> int:
    number = letters.export(sys.stdout, **_filters(args))
    print(format_count(number, "letter"), file=sys.stderr)
    return 0


def _replay(args: argparse.Namespace) -> int:
    with user_files.open_step(args) as step:
        which = {"error": args.error, "key": args.key, "by": current_user(args.by)}
        ids = args.ids or None
        report = user_files.run_step(
            step,
            lambda: step.replay(ids, **which),
            lambda: step.replay_async(ids, **which),
            asynchronous=args.asynchronous,
        )
    number = format_count(len(report.replayed), "letter")
    print_result(args, report.as_json(), f"{number} replayed")
    return _missed(report, args.ids)


def _missed(report: ReplayReport, ids: Sequence[int]) -> int:
    """Print the letters that were not replayed; the exit code."""
    known = {*report.replayed, *report.failed, *report.skipped}
    missed = {
        "failed again": report.failed,
        "skipped": report.skipped,
        "no open letter of this step": [each for each in ids if each not in known],
    }
    if report.error is not None:  # the replay did not check whether the others are open
        del missed["no open letter of this step"]
    for reason, letters in missed.items():
        if letters:
            print(f"retrytemplate dlq: {reason}: {_ids(letters)}", file=sys.stderr)
    for letter, why in list(report.failures.items())[:SHOWN]:
        print(f"retrytemplate dlq: letter {letter}: {one_line(why)}", file=sys.stderr)
    if report.error is not None:
        raise CommandFailed(f"the replay stopped early: {report.error}")
    return 1 if any(missed.values()) else 0


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


STYLES = {"replayed": "green", "discarded": "dim"}
CRASHED = "red"


def _cells(letter: DeadLetter) -> Iterator[str]:
    yield str(letter.id)
    yield letter.step
    yield letter.key
    yield letter.phase
    yield str(letter.attempts)
    yield letter.state
    yield format_span(time() - letter.created)
    yield letter.problem or one_line(RecordedFailure(letter.error_type, letter.error_message, None))


def _style(letter: DeadLetter) -> str | None:
    if letter.state == "open" and letter.phase == "crash":
        return CRASHED
    return STYLES.get(letter.state)


def _facts(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    yield "step", f"{letter.step}, run {letter.run}"
    yield "item", f"{letter.source}, number {letter.number}"
    again = "" if letter.ordinal == 1 else f", number {letter.ordinal} of this key"
    yield "key", f"{letter.key}{again}"
    yield "payload", letter.payload if letter.replayable else f"{letter.payload} (text only)"
    yield "phase", letter.phase
    yield "failure", with_text(letter.error_type, letter.error_message)
    if letter.code_version is not None:
        yield "code", letter.code_version
    yield "state", letter.state
    yield "created", format_when(letter.created, time())
    for entry in letter.audit:
        reason = f": {entry.reason}" if entry.reason else ""
        yield entry.action, f"{format_moment(entry.at)} by {entry.by}{reason}"
    if letter.problem is not None:
        yield "problem", letter.problem


LETTERS: Listing[DeadLetter] = Listing(
    items="letters",
    heads=("id", "step", "key", "phase", "tries", "state", "age", "last failure"),
    numbers=("id", "tries", "age"),
    name="key",
    cells=_cells,
    style=_style,
    as_json=_summary,
    cursor=lambda letter: letter.id,
    empty="No dead letters match.",
)
