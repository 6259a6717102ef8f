"""The handling of failing items by a step: its own rules, run on a temporary database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field, frozen

from retrytemplate._internal.validation import check_at_least_one, check_int, checked_by
from retrytemplate.backoff.base import NoBackoff
from retrytemplate.batch.events import Event, StepListener
from retrytemplate.batch.journal.repository import JobRepository
from retrytemplate.batch.readers.iterables import SequenceReader
from retrytemplate.control.isolation_gate.gate import ProcessGate
from retrytemplate.testing import VirtualClock

if TYPE_CHECKING:
    from retrytemplate.batch.report import Report
    from retrytemplate.template import RetryTemplate

    Failures = BaseException | Sequence[BaseException]


def _failures(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of items to exceptions, got {value!r}")
    for item, failures in value.items():
        check_int(f"each item of {name}", item, 1)
        planned = [failures] if isinstance(failures, BaseException) else failures
        listed = isinstance(planned, Sequence)
        if not (listed and all(isinstance(each, BaseException) for each in planned)):
            raise TypeError(
                f"{name} must have an exception or a list of them for item {item}, got {failures!r}"
            )


def _items(name: str, value: Any) -> None:
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be a list of items, got {value!r}")
    for item in value:
        check_int(f"each item of {name}", item, 1)


@frozen
class Scenario:
    """Items 1, 2, 3 and so on, and which of them fail.

    :param items: how many.
    :param process: by item what the processor raises: an exception, always; a list, one at each
        attempt until it is used up.
    :param write: the same of the writer.
    :param filtered: items for which the processor gives None.

    >>> Scenario(items=3, process={2: ValueError("no price")}).items
    3
    """

    items: int = field(default=3, validator=checked_by(check_at_least_one))
    process: Mapping[int, Failures] = field(factory=dict, validator=checked_by(_failures))
    write: Mapping[int, Failures] = field(factory=dict, validator=checked_by(_failures))
    filtered: Collection[int] = field(default=(), validator=checked_by(_items))


@frozen
class Explanation:
    """A table of what happens, transaction by transaction; ``str()`` of it is the table.

    :param lines: one per transaction: its number (None: outside of a transaction), and its events.
    """

    lines: tuple[tuple[int | None, str], ...]
    report: Report

    def __str__(self) -> str:
        lines = [f"{'' if tx is None else f'tx{tx}':<5}{text}" for tx, text in self.lines]
        report = self.report
        counts = ", ".join(
            f"{name} {getattr(report, name)}"
            for name in ("read", "written", "filtered", "dead_lettered", "retries", "rollbacks")
        )
        return "\n".join([*lines, f"{report.status}: {counts}"])


@define
class TransactionTable(StepListener):
    """Gathers the events of a run, a line a transaction."""

    lines: list[tuple[int | None, str]] = Factory(list)
    _outside: list[str] = Factory(list)

    def on_event(self, event: Event) -> None:
        what = _describe_event(event)
        if event.transaction is None:
            if what:
                self._outside.append(what)
            return
        self._flush()
        if self.lines and self.lines[-1][0] == event.transaction:
            before, _, end = self.lines.pop()[1].rpartition("; ")
            what = f"{before}, {what}"
        else:
            end = "ROLLBACK"
        if event.committed:
            end = "COMMIT"
        self.lines.append((event.transaction, f"{what}; {end}"))

    def _flush(self) -> None:
        if self._outside:
            self.lines.append((None, ", ".join(self._outside)))
            self._outside = []

    def done(self) -> tuple[tuple[int | None, str], ...]:
        self._flush()
        return tuple(self.lines)


def _describe_event(event: Event) -> str:
    items = ",".join(map(str, event.numbers))
    error = "" if event.error is None else event.error.type_name.rpartition(".")[2]
    return {
        "processed": f"process {items}",
        "filtered": f"process {items} (filtered)",
        "failed": f"process {items} fails ({error})",
        "rolled_back": f"write [{items}] fails ({error})",
        "written": f"write [{items}]",
        "dead_lettered": f"dead letter {items}",
    }.get(event.kind, "")


@define
class _Fails:
    """Raises the failures of the scenario, attempt by attempt."""

    failures: Mapping[int, Failures]
    _met: dict[int, int] = Factory(dict)

    def at(self, item: int) -> None:
        planned = self.failures.get(item, ())
        if isinstance(planned, BaseException):
            raise planned
        met = self._met.get(item, 0)
        self._met[item] = met + 1
        if met < len(planned):
            raise planned[met]


def explain(
    run: Callable[..., Report], scenario: Scenario, template: RetryTemplate, *, processes: bool
) -> Explanation:
    """Run a step's rules on the scenario, with waits that take no time.

    :param run: runs the step with the settings that are passed.
    :param processes: whether the step has a processor.
    """
    if not isinstance(scenario, Scenario):
        raise TypeError(f"scenario must be a Scenario, got {scenario!r}")
    process, write, table = _Fails(scenario.process), _Fails(scenario.write), TransactionTable()

    def processor(item: int, _: Any = None) -> int | None:
        process.at(item)
        return None if item in scenario.filtered else item

    def writer(items: Sequence[int], _: Any) -> None:
        for item in items:
            write.at(item)

    with (
        TemporaryDirectory() as folder,
        JobRepository(f"sqlite:///{folder}/explain.db") as repository,
    ):
        report = run(
            reader=SequenceReader(range(1, scenario.items + 1)),
            processor=processor if processes else None,
            writer=writer,
            repository=repository,
            database=None,
            retry=template.with_(clock=VirtualClock()),
            backoff=NoBackoff(),
            gate=ProcessGate(),
            key=None,
            concurrency=1,
            outbox=None,
            after_commit=None,
            listeners=(table,),
        )
    return Explanation(table.done(), report)
