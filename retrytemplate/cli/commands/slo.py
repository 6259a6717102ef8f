"""The command ``retrytemplate slo``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_count, printable
from retrytemplate._internal.imports import extra
from retrytemplate.cli.arguments import add_verbs, text
from retrytemplate.cli.errors import CommandFailed, print_json
from retrytemplate.cli.stores import mask_passwords
from retrytemplate.config import ConfigError

if TYPE_CHECKING:
    import argparse

    from retrytemplate.observe import SLO, BurnRate
    from retrytemplate.observe.alerts.slo import Objective

DESCRIPTION = """\
Service level objectives in files: burn rates, rules for Prometheus, Grafana.

The objectives are in section slo.  YAML needs the extra config.
"""
EXITS = {1: "the file has problems, or Prometheus did not answer"}
EPILOGS = {
    "check": """\
examples:
  retrytemplate slo check resilience.yaml

Only section slo is checked; for all sections use: retrytemplate config check
""",
    "report": """\
examples:
  retrytemplate slo report resilience.yaml
  retrytemplate slo report resilience.yaml --prometheus http://localhost:9090 --json

Without --prometheus: the objectives with the downtime that they allow.
""",
    "rules": """\
examples:
  retrytemplate slo rules resilience.yaml > retrytemplate-rules.yaml
  promtool check rules retrytemplate-rules.yaml

Prometheus 2.42 or later reads the file if rule_files of its configuration names it.
""",
    "grafana": """\
examples:
  retrytemplate slo grafana resilience.yaml > dashboard.json

Import the file in Grafana.  The burn rates need the rules of: retrytemplate slo rules
""",
}
DOES = {
    "check": "list the problems of section slo",
    "report": "show objectives, allowed downtime and burn rates",
    "rules": "print recording and alert rules for Prometheus",
    "grafana": "print a dashboard for Grafana",
}
TIMEOUT = 10.0
"""Seconds that a query may take."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    verbs = add_verbs(subparsers, "slo", "objectives, burn rates, alerts", DESCRIPTION, EXITS)
    for name, does in DOES.items():
        add = verbs.add(name, does, EPILOGS[name]).add_argument
        add("path", metavar="PATH", help="a file or folder")
        if name == "report":
            add("--prometheus", type=text, metavar="URL", help="count the calls there")


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    from retrytemplate.config.config import load_slos

    commands = {"check": _check, "report": _report, "rules": _rules, "grafana": _grafana}
    try:
        slos = load_slos(args.path)
    except ConfigError as error:
        for each in error.problems:
            print(printable(str(each)), file=sys.stderr)
        return 1
    commands[args.action](args, slos)
    return 0


def _check(args: argparse.Namespace, slos: tuple[SLO, ...]) -> None:
    if args.json:
        print_json({"slos": [each.name for each in slos]})
    else:
        print(f"no problems, {format_count(len(slos), 'SLO')}")


def _report(args: argparse.Namespace, slos: tuple[SLO, ...]) -> None:
    from retrytemplate.observe.alerts.report import make_report, target_text
    from retrytemplate.observe.alerts.slo import BurnRate

    if args.prometheus is not None:
        source = f"calls in Prometheus at {mask_passwords(args.prometheus)}"
        report = make_report(slos, _Server(args.prometheus).burn_rate, source)
        if args.json:
            print_json(report.as_json())
        else:
            print("\n".join(map(printable, str(report).splitlines())))
        return
    rows = [
        (each, BurnRate(slo.window, 0, 0, each.target)) for slo in slos for each in slo.objectives
    ]
    if args.json:
        print_json(
            {
                "objectives": [
                    {
                        "slo": each.slo.name,
                        "objective": each.name,
                        "target": each.target,
                        "threshold": each.threshold,
                        "window": burn.window,
                        "downtime_allowed": burn.downtime_allowed,
                    }
                    for each, burn in rows
                ]
            }
        )
        return
    for each, burn in rows:
        target = target_text(each.slo.name, each.name, each.threshold, burn)
        downtime = f": downtime allowed {burn.downtime_allowed / 60:.1f} min"
        print(printable(target + (downtime if each.threshold is None else "")))


class _Server:
    """Counts calls by queries to a Prometheus.

    :param url: its root.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def burn_rate(self, objective: Objective, window: float) -> BurnRate:
        """The burn rate of an objective in a window."""
        from retrytemplate.observe.alerts.prometheus import bad_calls, valid_calls
        from retrytemplate.observe.alerts.slo import BurnRate

        bad, valid = (self._number(each(objective, window)) for each in (bad_calls, valid_calls))
        return BurnRate(window, bad, valid, objective.target)

    def _number(self, expression: str) -> float:
        from http.client import HTTPException
        from urllib.parse import urlencode
        from urllib.request import urlopen

        try:
            url = f"{self._url}/api/v1/query?{urlencode({'query': expression})}"
            with urlopen(url, timeout=TIMEOUT) as response:
                found = json.load(response)["data"]["result"]
            return float(found[0]["value"][1]) if found else 0.0
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            shown = mask_passwords(self._url)
            raise CommandFailed(f"no answer of Prometheus at {shown}: {error}") from None


def _rules(args: argparse.Namespace, slos: tuple[SLO, ...]) -> None:
    from retrytemplate.observe.alerts.prometheus import prometheus_rules

    rules = prometheus_rules(slos)
    if args.json:
        print_json(rules)
        return
    with extra("config", "rules in YAML"):
        import yaml
    copied = json.loads(json.dumps(rules))  # else YAML would have aliases for shared labels
    print(yaml.safe_dump(copied, sort_keys=False, width=2**20, allow_unicode=True), end="")


def _grafana(args: argparse.Namespace, slos: tuple[SLO, ...]) -> None:
    from retrytemplate.observe.alerts.grafana import grafana_dashboard

    print_json(grafana_dashboard(slos))
