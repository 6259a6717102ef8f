"""Write the tables of keys of docs/operations/config.md from the table of kinds.

python tools/config_keys.py            # write the tables
python tools/config_keys.py --check    # fail if the page differs
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from retrytemplate.config.kinds import KINDS, OBSERVE, PRESETS, STORES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from retrytemplate.config.kinds import Kind
    from retrytemplate.config.parameters import Parameter

__all__ = ["main", "tables"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations" / "config.md"
PLACE = re.compile(r"(<!-- keys: begin -->\n).*?(<!-- keys: end -->)", re.DOTALL)
LINKS = {
    "stores": "several processes",
    "presets": "[presets](../control/presets.md)",
    "switch": "[kill switch](../control/kill-switch.md)",
    "fallback": "[fallback](../control/fallback.md)",
    "timeout": "[timeout](../control/timeout.md)",
    "retry": "[presets](../control/presets.md#settings)",
    "hedge": "[hedge](../control/hedge.md)",
    "breaker": "[circuit breaker](../control/circuit-breaker.md)",
    "rate_limiter": "[rate limiter](../control/rate-limiter.md)",
    "bulkhead": "[bulkhead](../control/bulkhead.md)",
    "budget": "[retry budget](../control/retry-budget.md)",
    "pipeline": "[pipeline](../control/pipeline.md)",
    "slo": "[objectives](slo.md)",
    "observe": "[observability](../guide/observability.md)",
}

# Notations that section "Values" of the page explains; errors show them in full.
SHORT = {
    "a duration such as 500ms or 2s, or a number of seconds": "a duration",
    "a share such as 30%, or a number": "a share",
    "a mapping of exception classes to true or false": "exceptions",
    "the name of a store of section stores": "the name of a store",
    "a list: the name of a registered function": "a list of function names",
    "the name of a registered function": "a function name",
    "a whole number": "an integer",
    "a list: ": "a list of ",
}


def tables() -> str:
    """One table with the keys of all sections."""
    lines = ["| key | values | default |", "|---|---|---|"]
    for kind in (STORES, PRESETS, *KINDS.values(), OBSERVE):
        lines.append(f"| **`{kind.section}`**: {LINKS[kind.section]} | | |")
        lines.extend(_rows(kind))
    return "".join(f"{each}\n" for each in lines)


def _rows(kind: Kind) -> Iterator[str]:
    if kind is PRESETS:
        kept: Sequence[Parameter] = kind.parameters[:1]
        yield from _cells(kept)
        yield "| all keys of `retry` but `preset` | | |"
        return
    yield from _cells(kind.own, f"{kind.section}: ")
    yield from _cells(kind.parameters)


def _cells(known: Iterable[Parameter], prefix: str = "") -> Iterator[str]:
    for each in known:
        name = f"`{each.name}`" + (" (of the section)" if prefix else "")
        default = "required" if each.required else f"`{_text(each.written_default())}`"
        yield f"| {name} | {_short(each.reader.allowed)} | {default} |"


def _short(allowed: str) -> str:
    """The allowed values in the words of the page."""
    for long, short in SHORT.items():
        allowed = allowed.replace(long, short)
    return allowed


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if the page differs")
    wanted = parser.parse_args(arguments)
    text = PAGE.read_text(encoding="utf-8")
    made = PLACE.sub(lambda found: f"{found[1]}{tables()}{found[2]}", text)
    if wanted.check:
        if made != text:
            print("the page differs: run python tools/config_keys.py", file=sys.stderr)
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
