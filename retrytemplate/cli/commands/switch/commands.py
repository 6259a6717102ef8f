"""``retrytemplate switch``: stop work, resume it, and show the stops."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_span, printable
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import (
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

EXIT_STOPPED = 3
MAX_AUDIT = loading.AUDIT_SCAN

DESCRIPTION = """\
Stop work by a kill switch, in all processes that share its store; resume it, at once or in steps;
show the stops.  Reading creates no table and changes nothing.

Use the store of your KillSwitch.  Other processes see a change within its stale_after.
--switch loads your KillSwitch from its file: its names and rules apply, and its notifiers are
called.
"""

EXITS = {
    1: "store unavailable, change rejected by the rules (nothing is changed), or check failed",
    EXIT_STOPPED: "status --exit-code: stopped",
}

STOP_EPILOG = f"""\
examples:
  retrytemplate switch stop --segment finance --reason "leak suspected, incident 4711" --for 24h
  retrytemplate switch stop --feature export --reason "wrong totals, incident 4712" --permanent
  retrytemplate switch stop --switch service.py:switch --segment finance \\
      --reason "leak suspected, incident 4711" --for 1w --when-expired keep
  {stores.STORE_VARIABLE}=redis://host/0 retrytemplate switch stop --global \\
      --reason "prices wrong everywhere, incident 4713" --for 2h --by kim --yes

A second stop of the same scope keeps the later of the two ends.
At a terminal, a stop of everything asks for confirmation.
"""

RESUME_EPILOG = """\
examples:
  retrytemplate switch resume --segment finance --justification "mended in 1.4.2"
  retrytemplate switch resume --global --justification "mended in 1.4.2" --canary 5,25,100
  retrytemplate switch resume --global --advance --justification "no errors for an hour"
  retrytemplate switch resume --global --advance --justification "by the probe" --check "./probe.sh"
  retrytemplate switch resume --global --failed --justification "errors are back, incident 4713"

Without --canary all keys resume at once; after a stop of everything, this needs --override.
A canary takes its next step with --advance only: justify it with your observations.
--check runs a command first: if its exit code is not 0, the scope is stopped again, and the exit
code is 1.
"""

STATUS_EPILOG = f"""\
examples:
  retrytemplate switch status --store sqlite:///switch.db
  retrytemplate switch status --segment finance --feature export --key user-17
  retrytemplate switch status --segment finance --exit-code || echo "do not deploy"

A key that is valid JSON is parsed: 17 is a number, '"17"' is text.

--exit-code exits with {EXIT_STOPPED} if a check of the given names would be rejected, or, without
names, if there is any stop.
"""

REPORT_EPILOG = """\
examples:
  retrytemplate switch report --store sqlite:///switch.db
  retrytemplate switch report --audit 20
  retrytemplate switch report --json | jq '.stopped[] | select(.overdue)'
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "stop work by a kill switch, resume it, show the stops"
    verbs = add_verbs(subparsers, "switch", does, DESCRIPTION, EXITS)
    does = "stop a scope, in all processes"
    _add_stopping(verbs.add("stop", does, STOP_EPILOG, loading.options()))
    does = "resume a scope, at once or in steps"
    _add_resuming(verbs.add("resume", does, RESUME_EPILOG, loading.options()))
    does = "show the present stops, or whether a scope may run"
    _add_looking(verbs.add("status", does, STATUS_EPILOG, loading.options()))
    does = "show all stops for a weekly review, overdue ones first"
    reporting = verbs.add("report", does, REPORT_EPILOG, loading.options())
    reporting.add_argument(
        "--audit", type=whole_number(MAX_AUDIT), metavar="N", help="also show the last N changes"
    )


def _add_stopping(parser: argparse.ArgumentParser) -> None:
    options.add_scope(parser)
    add = parser.add_argument
    does = "the reason, for other operators"
    add("--reason", type=options.parse_text, required=True, metavar="TEXT", help=does)
    does = "the operator (default: the user who is logged in)"
    add("--by", type=options.parse_text, metavar="NAME", help=does)
    end = parser.add_argument_group("end, exactly one").add_mutually_exclusive_group(required=True)
    end.add_argument(
        "--for",
        type=options.parse_duration,
        dest="seconds",
        metavar="TIME",
        help="90m, 24h, 1w, ...",
    )
    end.add_argument("--permanent", action="store_true", help="until an operator resumes it")
    add(
        "--when-expired",
        choices=("resume", "keep"),
        help="at the end: resume automatically, or keep the stop and send reminders (default: keep "
        "for --global, else resume)",
    )
    add("--yes", action="store_true", help="in a terminal: do not ask")


def _add_resuming(parser: argparse.ArgumentParser) -> None:
    options.add_scope(parser)
    add = parser.add_argument
    add(
        "--justification", type=options.parse_text, required=True, metavar="TEXT", help="the reason"
    )
    does = "the approving operator (default: the user who is logged in)"
    add("--by", type=options.parse_text, metavar="NAME", help=does)
    steps = parser.add_argument_group("steps").add_mutually_exclusive_group()
    steps.add_argument(
        "--canary",
        type=options.parse_shares,
        metavar="SHARES",
        help="resume these percentages of the keys in steps: 5,25,100",
    )
    steps.add_argument("--advance", action="store_true", help="take the next step of the canary")
    steps.add_argument(
        "--failed", action="store_true", help="roll the canary back: the work is not healthy"
    )
    add(
        "--check",
        type=text,
        metavar="COMMAND",
        help="with --advance: health check to run first, without a shell; exit code 0: healthy",
    )
    add("--override", action="store_true", help="resume all at once after a stop of everything")


def _add_looking(parser: argparse.ArgumentParser) -> None:
    options.add_names(parser)
    add = parser.add_argument
    does = "the key of the work; a canary decides by it"
    add("--key", type=options.parse_text, metavar="KEY", help=does)
    add(
        "--exit-code",
        action="store_true",
        help=f"exit with {EXIT_STOPPED} if stopped",
    )


def run(args: argparse.Namespace) -> int:
    """Stop, resume or show and return the exit code."""
    verbs = {"stop": _stop, "resume": _resume, "status": _status, "report": _report}
    with loading.open_switch(args) as switch:
        return verbs[args.action](args, switch)


def _stop(args: argparse.Namespace, switch: KillSwitch) -> int:
    by = current_user(args.by)
    if args.permanent and args.when_expired == "resume":
        raise UsageError("--when-expired resume: needs --for; --permanent has no end")
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
        raise UsageError("--check: needs --advance")
    if not (args.advance or args.failed):
        steps = {"canary": args.canary, "override": args.override}
        _show(args, switch, _run_command(args, switch, "resume", **common, **steps))
        return 0
    if args.override:
        raise UsageError("--override: cannot be combined with --advance or --failed")
    well = (
        False if args.failed else None if args.check is None else options.health_check(args.check)
    )
    record = _run_command(args, switch, "advance", **common, healthy=well)
    _show(args, switch, record)
    if args.advance and record.action == "rolled_back":
        raise CommandFailed(f"the check {args.check!r} failed: {record.scope} is stopped again")
    return 0


def _run_command(
    args: argparse.Namespace, switch: KillSwitch, method: str, **settings: Any
) -> AuditRecord:
    """The record of the change that a method of the switch made.

    :raises CommandFailed: the rules reject the change.
    """
    with options.translate_errors(), redirect_stdout(sys.stderr):  # output of notifiers
        record: AuditRecord = getattr(switch, method)(
            everything=args.everything, **options.scope_arguments(args), **settings
        )
    return record


def _show(args: argparse.Namespace, switch: KillSwitch, record: AuditRecord) -> None:
    """Print a change; it is committed even if the store can no longer be read."""
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
        print(f"{printable(headline(record))}, but the result cannot be printed", file=sys.stderr)
        raise


def _status(args: argparse.Namespace, switch: KillSwitch) -> int:
    scopes, key = options.required_scopes(args, switch), options.parse_key(args.key)
    view = loading.load_view(switch.store)
    if len(scopes) == 1 and key is None:
        stopped = bool(view.lines)
        if args.json:
            print_json(view.as_json())
        else:
            _screen().list(view)
    else:
        decision = view.decide(scopes, key)
        stopped = not decision.allowed
        if args.json:
            print_json(view.decision_as_json(decision))
        else:
            _screen().decision(decision, scopes, key, view)
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
