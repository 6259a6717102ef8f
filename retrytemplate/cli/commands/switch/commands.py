"""``retrytemplate switch``: stop work, let it run again, and see what is stopped."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_span, printable
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import (
    add_command,
    add_verb,
    add_verbs,
    current_user,
    text,
    whole_number,
)
from retrytemplate.cli.commands.switch import loading, options
from retrytemplate.cli.errors import CommandFailed, UsageError, confirm, print_json
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from retrytemplate.cli.commands.switch.rendering import SwitchScreen
    from retrytemplate.control import KillSwitch
    from retrytemplate.control.switch.model import AuditRecord

__all__ = ["add_parser", "run"]

EXIT_STOPPED = 3
MAX_AUDIT = loading.AUDIT_SCAN

DESCRIPTION = """\
Stop work by a kill switch, in all processes that share its store; let it run again, at once or step
by step; see what is stopped.  Looking makes no table and changes nothing.
"""

EPILOG = f"""\
examples:
  retrytemplate switch stop --segment finance --reason "leak suspected, incident 4711" --for 24h
  retrytemplate switch status --store postgresql://me@host/db
  retrytemplate switch resume --segment finance --justification "mended in 1.4.2" --canary 5,25,100
  retrytemplate switch report --audit 20

The store is the one that your KillSwitch has.  Processes see a change within its stale_after.  With
--switch it is your KillSwitch, from its file: its names and rules hold, and its notifiers tell.

exit codes:
  0 done   1 the store cannot be reached, or the rules refuse it: nothing is changed; or a check
  has failed   2 wrong use   {EXIT_STOPPED} stopped, where status was asked with --exit-code
  130 interrupted
"""

STOP_EPILOG = f"""\
examples:
  retrytemplate switch stop --segment finance --reason "leak suspected, incident 4711" --for 24h
  retrytemplate switch stop --feature export --reason "wrong totals, incident 4712" --permanent
  retrytemplate switch stop --switch service.py:switch --segment finance \\
      --reason "leak suspected, incident 4711" --for 1w --when-expired keep
  {stores.STORE_VARIABLE}=redis://host/0 retrytemplate switch stop --global \\
      --reason "prices wrong everywhere, incident 4713" --for 2h --by kim --yes

What is stopped already is stopped anew: the later of the two ends holds.  Where somebody sits at a
terminal, a stop of everything asks first.
"""

RESUME_EPILOG = """\
examples:
  retrytemplate switch resume --segment finance --justification "mended in 1.4.2"
  retrytemplate switch resume --global --justification "mended in 1.4.2" --canary 5,25,100
  retrytemplate switch resume --global --advance --justification "no errors for an hour"
  retrytemplate switch resume --global --advance --justification "by the probe" --check "./probe.sh"
  retrytemplate switch resume --global --failed --justification "errors are back, incident 4713"

Without --canary all of it runs at once; after a stop of everything that needs --override.  A canary
takes its next step with --advance only: justify it with what you have view at.  With --check that
command looks; where it ends with anything but 0, all is stopped again, and the exit code is 1.
"""

STATUS_EPILOG = f"""\
examples:
  retrytemplate switch status --store sqlite:///switch.db
  retrytemplate switch status --segment finance --feature export --key user-17
  retrytemplate switch status --segment finance --exit-code || echo "do not deploy"

A key that looks like JSON is taken as such: 17 is a number, '"17"' is text.

With --exit-code it ends with {EXIT_STOPPED} where something is stopped: with names, where a check
would refuse; without, where there is anything.
"""

REPORT_EPILOG = """\
examples:
  retrytemplate switch report --store sqlite:///switch.db
  retrytemplate switch report --audit 20
  retrytemplate switch report --json | jq '.stopped[] | select(.overdue)'
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "stop work by a kill switch, let it run again, see what is stopped"
    parser = add_command(subparsers, "switch", does, DESCRIPTION, EPILOG)
    verbs = add_verbs(parser)
    does = "stop something, in all processes"
    _add_stopping(add_verb(verbs, "stop", does, STOP_EPILOG, loading.options()))
    does = "let something run again, at once or step by step"
    _add_resuming(add_verb(verbs, "resume", does, RESUME_EPILOG, loading.options()))
    does = "what is stopped now, or whether something may run"
    _add_looking(add_verb(verbs, "status", does, STATUS_EPILOG, loading.options()))
    does = "everything that is stopped, for a weekly look: what is overdue first"
    reporting = add_verb(verbs, "report", does, REPORT_EPILOG, loading.options())
    reporting.add_argument(
        "--audit", type=whole_number(MAX_AUDIT), metavar="N", help="the last N changes, too"
    )
    return parser


def _add_stopping(parser: argparse.ArgumentParser) -> None:
    options.add_scope(parser)
    add = parser.add_argument
    does = "why, for those who are not there"
    add("--reason", type=options.parse_text, required=True, metavar="TEXT", help=does)
    does = "who stops it (default: who is logged in)"
    add("--by", type=options.parse_text, metavar="NAME", help=does)
    end = parser.add_argument_group("until when, exactly one").add_mutually_exclusive_group(
        required=True
    )
    end.add_argument(
        "--for",
        type=options.parse_duration,
        dest="seconds",
        metavar="TIME",
        help="90m, 24h, 1w, ...",
    )
    end.add_argument("--permanent", action="store_true", help="until somebody lets it run")
    add(
        "--when-expired",
        choices=("resume", "keep"),
        help="at the end it runs by itself, or it stays stopped and you are reminded (default: "
        "keep for --global, else resume)",
    )
    add("--yes", action="store_true", help="in a terminal: do not ask")


def _add_resuming(parser: argparse.ArgumentParser) -> None:
    options.add_scope(parser)
    add = parser.add_argument
    add(
        "--justification", type=options.parse_text, required=True, metavar="TEXT", help="why it may"
    )
    does = "who approves of it (default: who is logged in)"
    add("--by", type=options.parse_text, metavar="NAME", help=does)
    steps = parser.add_argument_group("step by step").add_mutually_exclusive_group()
    steps.add_argument(
        "--canary",
        type=options.parse_shares,
        metavar="SHARES",
        help="begin with the first of these shares of the keys, in per cent: 5,25,100",
    )
    steps.add_argument("--advance", action="store_true", help="take the next step")
    steps.add_argument("--failed", action="store_true", help="back to none: it is not well")
    add("--check", type=text, metavar="COMMAND", help="with --advance: 0 is well (no shell)")
    add("--override", action="store_true", help="at once though everything was stopped")


def _add_looking(parser: argparse.ArgumentParser) -> None:
    options.add_names(parser)
    add = parser.add_argument
    does = "whose work it is; while a canary runs, it decides"
    add("--key", type=options.parse_text, metavar="KEY", help=does)
    add(
        "--exit-code",
        action="store_true",
        help=f"end with {EXIT_STOPPED} where something is stopped",
    )


def run(args: argparse.Namespace) -> int:
    """Stop, resume, or look; the exit code."""
    verbs = {"stop": _stop, "resume": _resume, "status": _status, "report": _report}
    with loading.open_switch(args) as switch:
        return verbs[args.action](args, switch)


def _stop(args: argparse.Namespace, switch: KillSwitch) -> int:
    by = current_user(args.by)
    if args.permanent and args.when_expired == "resume":
        raise UsageError("--when-expired resume: goes with --for, --permanent has no end")
    if args.everything and not args.yes and not confirm("Stop everything?", _facts(args)):
        raise CommandFailed("nothing was changed")
    record = _run_command(
        args,
        switch,
        "stop",
        reason=args.reason,
        by=by,
        expires_in=args.seconds,
        permanent=args.permanent,
        when_expired=args.when_expired,
    )
    _show(args, switch, record)
    return 0


def _facts(args: argparse.Namespace) -> Iterator[str]:
    end = "permanently" if args.permanent else f"for {format_span(args.seconds)}"
    yield f"In all processes, {end}: {args.reason!r}"


def _resume(args: argparse.Namespace, switch: KillSwitch) -> int:
    common = {"by": current_user(args.by), "justification": args.justification}
    if args.check is not None and not args.advance:
        raise UsageError("--check: goes with --advance")
    if not (args.advance or args.failed):
        asked = {"canary": args.canary, "override": args.override}
        _show(args, switch, _run_command(args, switch, "resume", **common, **asked))
        return 0
    if args.override:
        raise UsageError("--override: goes with neither --advance nor --failed")
    well = (
        False if args.failed else None if args.check is None else options.health_check(args.check)
    )
    record = _run_command(args, switch, "advance", **common, healthy=well)
    _show(args, switch, record)
    if args.advance and record.action == "rolled_back":
        raise CommandFailed(
            f"{args.check!r} says that it is not well: {record.scope} is stopped again"
        )
    return 0


def _run_command(
    args: argparse.Namespace, switch: KillSwitch, method: str, **settings: Any
) -> AuditRecord:
    """The record of what a command of the switch has changed.

    :raises CommandFailed: the rules refuse it.
    """
    with options.translate_errors(), redirect_stdout(sys.stderr):  # what its notifiers print
        record: AuditRecord = getattr(switch, method)(
            everything=args.everything, **options.scope_arguments(args), **settings
        )
    return record


def _show(args: argparse.Namespace, switch: KillSwitch, record: AuditRecord) -> None:
    """What a change came to; it is made, whatever can be seen of it now."""
    from retrytemplate.cli.commands.switch.rendering import headline, print_change

    try:
        view = loading.load_view(switch.store)
    except SwitchStoreError:
        view = loading.StoreView(record.at, 0)
    change = view.find_change(record)
    try:
        if args.json:
            print_json(change.as_json())
        else:
            print_change(change, view, named=args.by is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        print(f"{printable(headline(record))}, but it cannot be shown", file=sys.stderr)
        raise


def _status(args: argparse.Namespace, switch: KillSwitch) -> int:
    asked, key = options.required_scopes(args, switch), options.parse_key(args.key)
    view = loading.load_view(switch.store)
    if len(asked) == 1 and key is None:
        stopped = bool(view.lines)
        if args.json:
            print_json(view.as_json())
        else:
            _screen().list(view)
    else:
        decision = view.decide(asked, key)
        stopped = not decision.allowed
        if args.json:
            print_json(view.decision_as_json(decision))
        else:
            _screen().decision(decision, asked, key, view)
    return EXIT_STOPPED if stopped and args.exit_code else 0


def _report(args: argparse.Namespace, switch: KillSwitch) -> int:
    view = loading.load_view(switch.store)
    changes = view.audit[: args.audit or 0]
    if args.json:
        audit = {} if args.audit is None else {"changes": [each.as_json() for each in changes]}
        print_json({**view.as_json(), **audit})
        return 0
    screen = _screen()
    screen.report(view)
    if args.audit is not None:
        screen.changes(changes)
    return 0


def _screen() -> SwitchScreen:
    from retrytemplate.cli.commands.switch.rendering import SwitchScreen

    return SwitchScreen()
