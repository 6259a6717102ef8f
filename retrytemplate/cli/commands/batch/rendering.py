"""Output of ``retrytemplate batch status``: the table of runs, and the facts of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.formatting import format_age, format_moment, format_span, with_text
from retrytemplate.cli.formatting import (
    STYLES,
    describe_suspects,
    format_clock,
    format_count,
    named_parameters,
)
from retrytemplate.cli.tables import Listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate.batch import RunStatus

__all__ = ["RUNS", "run_facts"]

RESTART_HINT = "run it again to resume"
HINTS = {
    "crashed": f": its process ended before the run; {RESTART_HINT}",
    "failed": f": {RESTART_HINT}",
    "stopped": f": {RESTART_HINT}",
}


def _cells(run: RunStatus) -> Iterator[str]:
    counts = run.counts
    yield str(run.run_id)
    yield run.step
    yield "isolating" if run.isolating and run.state == "running" else run.state
    yield "" if run.progress is None else f"{run.progress:.0%}"
    yield from map(str, (counts.written, counts.dead_lettered))
    yield "" if run.rate is None else f"{run.rate:,.0f}/s"
    yield format_span(run.now - run.updated)
    yield run.problem or " ".join(named_parameters(run))


def run_facts(run: RunStatus) -> Iterator[tuple[str, str]]:
    if run.parameters:
        yield "parameters", " ".join(named_parameters(run))
    yield "state", _state(run)
    if run.error is not None:
        yield "error", with_text(run.error.type_name, run.error.message)
    if run.worker is not None and run.lease_until is not None:
        until = f"{format_moment(run.lease_until)}, {format_age(run.now - run.lease_until)}"
        yield "was held by" if run.state == "crashed" else "held by", f"{run.worker}, until {until}"
    counts = run.counts
    yield (
        "read",
        (
            f"{counts.read} = {counts.written} written + {counts.filtered} filtered + "
            f"{counts.dead_lettered} dead-lettered + {run.pending} pending"
        ),
    )
    skipped = format_count(counts.skipped, "item")
    yield "skipped", f"{skipped}, dead-lettered by the skip policy"
    yield "retries", f"{counts.retries}, rollbacks {counts.rollbacks}, crashes {counts.crashes}"
    if run.rate is not None:
        left = run.remaining()
        yield "rate", f"{run.rate:.1f}/s" + ("" if left is None else f", {format_clock(left)} left")
    for label, when in (("started", run.started), ("updated", run.updated), ("ended", run.ended)):
        if when is not None:
            yield label, f"{format_moment(when)}, {format_age(run.now - when)}"
    if run.unsent:
        yield "outbox", f"{run.unsent} unsent; to send: retrytemplate outbox send FILE:NAME"
    yield "writes", "exactly once" if run.exactly_once else "at least once, to another database"
    if run.code_version is not None:
        yield "code", run.code_version
    if run.problem is not None:
        yield "problem", run.problem


def _state(run: RunStatus) -> str:
    share = "" if run.progress is None else f", {run.progress:.0%} read"
    isolating = f", {describe_suspects(run)}" if run.isolating else ""
    return f"{run.state}{share}{isolating}{HINTS.get(run.state, '')}"


def _note(page: Sequence[RunStatus]) -> str:
    unsent = sum(run.unsent for run in page)
    return (
        f"{unsent} messages of these runs are unsent; to show: retrytemplate outbox list"
        if unsent
        else ""
    )


HEADS = ("run", "step", "state", "share", "written", "letters", "rate", "age", "parameters")
RUNS: Listing[RunStatus] = Listing(
    items="runs",
    heads=HEADS,
    numbers=("run", "share", "written", "letters", "rate", "age"),
    name=HEADS.index("step"),
    cells=_cells,
    style=lambda run: STYLES.get(run.state),
    as_json=lambda run: run.as_json(),
    cursor=lambda run: run.run_id,
    option="--before",
    empty="No runs match.",
    note=_note,
)
