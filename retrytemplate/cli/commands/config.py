"""The command ``retrytemplate config``."""

from __future__ import annotations

import json
import os
import sys
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import asdict

from retrytemplate._internal.formatting import format_limit, printable
from retrytemplate.cli.arguments import add_verbs
from retrytemplate.cli.arguments import seconds as seconds_from
from retrytemplate.cli.errors import UsageError, print_json
from retrytemplate.config import ConfigError, UnknownEndpointError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from retrytemplate.config import Config, ConfigProblem, Delay, Setting
    from retrytemplate.control import LintWarning

DESCRIPTION = """\
Check and show configuration files: endpoints with their retries and limits.

Values from environment variables are shown as ***.  YAML needs the extra config.
"""
EXITS = {1: "the files have problems"}
CHECK_EPILOG = """\
examples:
  retrytemplate config check resilience.yaml
  retrytemplate config check conf/ other.toml --strict --json

Problems are settings that load() rejects.  Findings are warnings about the order of layers and
about their numbers.  Functions that the program registers are not known and not checked.
"""
SHOW_EPILOG = """\
examples:
  retrytemplate config show resilience.yaml
  retrytemplate config show resilience.yaml billing --sources

A source is file and line, the name of a preset, or "default".
"""
EXPLAIN_EPILOG = """\
examples:
  retrytemplate config explain resilience.yaml billing
  retrytemplate config explain resilience.yaml billing --attempt-duration 0.5 --json

raw: initial x multiplier^(retry - 1)   capped: at most maximum   range: with jitter
"""
SCHEMA_EPILOG = """\
examples:
  retrytemplate config schema > retrytemplate.schema.json

Name it in the first line of a YAML file, and editors complete and check the settings:
  # yaml-language-server: $schema=./retrytemplate.schema.json
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    verbs = add_verbs(
        subparsers, "config", "check and show configuration files", DESCRIPTION, EXITS
    )
    add = verbs.add("check", "list problems and findings of files", CHECK_EPILOG).add_argument
    add("paths", nargs="+", metavar="PATH", help="a file, or a folder with a file per section")
    add("--strict", action="store_true", help="exit with 1 for findings, too")
    add = verbs.add("show", "show the settings in force", SHOW_EPILOG).add_argument
    add("path", metavar="PATH", help="a file or folder")
    add("endpoint", nargs="?", metavar="ENDPOINT", help="its name (default: all)")
    add("--sources", action="store_true", help="add the source of each setting")
    does = "show layers, delays and the longest duration of calls"
    add = verbs.add("explain", does, EXPLAIN_EPILOG).add_argument
    add("path", metavar="PATH", help="a file or folder")
    add("endpoint", metavar="ENDPOINT", help="its name")
    add(
        "--attempt-duration",
        type=seconds_from(0),
        metavar="SECONDS",
        help="the longest duration of one call of the function (default: unknown)",
    )
    verbs.add("schema", "print the JSON Schema of the files", SCHEMA_EPILOG)


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    commands = {"check": _check, "show": _show, "explain": _explain, "schema": _schema}
    try:
        return commands[args.action](args)
    except ConfigError as error:
        _print_problems(error.problems, file=sys.stderr)
        return 1
    except UnknownEndpointError as error:
        raise UsageError(str(error)) from None


def _load(path: str) -> Config:
    from retrytemplate.config.config import load_for_inspection

    return load_for_inspection(path, os.environ)


# check


def _check(args: argparse.Namespace) -> int:
    problems: list[ConfigProblem] = []
    findings: list[tuple[str, str, LintWarning]] = []
    for path in args.paths:
        try:
            config = _load(path)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        for name in config.names:
            findings.extend((path, name, each) for each in config.endpoint(name).lint())
    if args.json:
        print_json(
            {
                "problems": [asdict(each) for each in problems],
                "findings": [
                    {"file": path, "endpoint": name, **asdict(each)}
                    for path, name, each in findings
                ],
            }
        )
    else:
        _print_problems(problems)
        for path, name, each in findings:
            print(printable(f"{path}: {name}: {each}"))
        if not problems and not findings:
            print("no problems, no findings")
    return int(bool(problems or (args.strict and findings)))


def _print_problems(problems: Iterable[ConfigProblem], file: Any = None) -> None:
    for each in problems:
        print(printable(str(each)), file=file)


# show


def _show(args: argparse.Namespace) -> int:
    config = _load(args.path)
    names = config.names if args.endpoint is None else (args.endpoint,)
    found = {name: config.effective(name) for name in names}
    observe = {} if args.endpoint is not None else config.effective_observe()
    if args.json:
        endpoints = {name: _json(settings) for name, settings in found.items()}
        print_json({"endpoints": endpoints, "observe": _json(observe)})
        return 0
    blocks = [*found.items(), *([("section observe", observe)] if observe else [])]
    for place, (name, settings) in enumerate(blocks):
        if place:
            print()
        print(printable(name))
        _print_columns([_row(key, each, args.sources) for key, each in settings.items()])
    return 0


def _json(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {
        key: {"value": _finite(each.value), "source": each.source} for key, each in settings.items()
    }


def _row(key: str, setting: Setting, sources: bool) -> tuple[str, ...]:
    value = _finite(setting.value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return (key, text, setting.source) if sources else (key, text)


def _finite(value: Any) -> Any:
    """A value that JSON can represent: infinity in the notation of YAML."""
    return ".inf" if value == inf else value


def _print_columns(rows: Sequence[Sequence[str]], *, indent: str = "  ") -> None:
    """Print rows in columns; the last column is not padded."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print(f"{indent}{'  '.join(cells).rstrip()}")


# explain


def _explain(args: argparse.Namespace) -> int:
    config = _load(args.path)
    endpoint, delays = config.endpoint(args.endpoint), config.delays(args.endpoint)
    duration = args.attempt_duration
    if args.json:
        worst = {
            kind: endpoint.worst_case(attempt_duration=duration, synchronous=synchronous)
            for kind, synchronous in (("asynchronous", False), ("synchronous", True))
        }
        print_json(
            {
                "endpoint": args.endpoint,
                "layers": [type(each).__name__ for each in endpoint.pipeline.layers],
                "delays": [{**asdict(each), "raw": _finite(each.raw)} for each in delays],
                "worst_case": {kind: _finite(each) for kind, each in worst.items()},
                "warnings": [asdict(each) for each in endpoint.lint(attempt_duration=duration)],
            }
        )
        return 0
    for line in endpoint.explain(attempt_duration=duration).splitlines():
        print(printable(line))
    if delays:
        print("Delays before the retries, unless a server requests a longer one:")
        heads = ("retry", "raw", "capped", "range")
        _print_columns([heads, *map(_delay_row, delays)])
    return 0


def _delay_row(delay: Delay) -> tuple[str, ...]:
    shortest, longest = format_limit(delay.shortest), format_limit(delay.longest)
    between = longest if shortest == longest else f"{shortest} to {longest}"
    return str(delay.retry), format_limit(delay.raw), format_limit(delay.capped), between


# schema


def _schema(args: argparse.Namespace) -> int:
    from retrytemplate.config import json_schema

    print_json(json_schema())
    return 0
