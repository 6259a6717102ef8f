"""Status of runs, read from the journal without a lock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from attrs import asdict, field, frozen

from retrytemplate._internal.validation import check_at_least_one, instance_of
from retrytemplate.batch import validation
from retrytemplate.batch.engine.checkpoint import Checkpoint
from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.batch.events import error_as_json
from retrytemplate.batch.journal.letters import digest
from retrytemplate.batch.journal.repository import JobRepository
from retrytemplate.batch.journal.rows import COUNTS, RUN, damaged, equal, parsed, readable
from retrytemplate.batch.journal.run import Counts
from retrytemplate.batch.journal.runs import is_taken, read
from retrytemplate.batch.journal.schema import now
from retrytemplate.batch.report import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, RowMapping, Table

    from retrytemplate.errors import RecordedFailure

    State = Status | Literal["crashed"]

# The columns that are fields of the same name.
AS_THEY_ARE = """
step generation worker lease_until progress code_version started taken done_before updated ended now
""".split()


@frozen(kw_only=True)
class RunStatus:
    """A run as the journal has it.  Times are seconds since the epoch by the database's clock.

    :param parameters: JSON values.
    :param generation: the number of the run among those of this step and these parameters.
    :param state: the run's status; "crashed": its row is "running", but its lease has
        expired or its process is gone.
    :param worker: its holder; ``lease_until``: the end of the lease, unless it is renewed.
    :param pending: items of the chunk in progress that are not decided, as far as known.
    :param unsent: number of messages of the run that wait in the outbox.
    :param progress: the part of the source that is read, from 0 to 1; None: unknown.
    :param isolating: True after a crash with the chunk in progress: its items are processed one by
        one.
    :param suspects: the number of its remaining items; None: there is no suspect, or they were not
        counted yet.
    :param isolated_item: the item that is processed exclusively, by its place in the chunk, from 1.
    :param error: the failure that ended it.
    :param taken: when its last holder took it; ``done_before``: items that were done by then.
    :param now: the time of this status.
    :param problem: the damage of its row, or None.
    """

    run_id: int
    step: str
    parameters: dict[str, Any]
    generation: int
    state: State
    worker: str | None
    lease_until: float | None
    counts: Counts
    pending: int
    progress: float | None
    isolating: bool
    suspects: int | None
    isolated_item: int | None
    exactly_once: bool
    error: RecordedFailure | None
    code_version: str | None
    started: float
    taken: float | None
    done_before: int
    updated: float
    ended: float | None
    now: float
    unsent: int = 0
    problem: str | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state not in ("running", "crashed")

    @property
    def rate(self) -> float | None:
        """Items a second since it was taken last."""
        if self.taken is None:
            return None
        until = self.now if self.state == "running" else self.ended or self.updated
        done = self.counts.done - self.done_before
        return done / (until - self.taken) if until > self.taken else None

    def remaining(self, rate: float | None = None) -> float | None:
        """Estimated seconds to the end at this rate; None: unknown.

        :param rate: items a second; None: those since the run was taken.
        """
        pace = self.rate if rate is None else rate
        if self.over or not pace or not self.progress or not self.counts.done:
            return None
        return self.counts.done * (1.0 - self.progress) / self.progress / pace

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values; the counts are fields of their own."""
        data = asdict(self, recurse=False)
        counts, error = data.pop("counts"), data.pop("error")
        more = {
            "claimed_at": data.pop("taken"),
            "done_before_claim": data.pop("done_before"),
            "error": error_as_json(error),
            "rate": self.rate,
            "remaining_seconds": self.remaining(),
        }
        return data | asdict(counts) | more


@frozen
class _Wanted:
    step: str | None = field(validator=validation.text_or_none)
    status: Status | None = field(validator=validation.one_of_or_none(*get_args(Status)))
    before: int | None = field(validator=validation.number_or_none)

    def conditions(self, runs: Table) -> list[ColumnElement[bool]]:
        wanted = equal(runs, step=self.step, status=self.status)
        return wanted if self.before is None else [*wanted, runs.c.id < self.before]


@frozen
class Runs:
    """The runs of a job repository, read only.

    Every method raises ``JobRepositoryError`` if the database cannot be reached or has no tables;
    no table is created.

    >>> from tempfile import TemporaryDirectory
    >>> from retrytemplate.batch import ChunkStep, JobRepository
    >>> with TemporaryDirectory() as folder, JobRepository(f"sqlite:///{folder}/jobs.db") as jobs:
    ...     step = ChunkStep(
    ...         "count", reader=range(5), writer=lambda items, transaction: None, repository=jobs
    ...     )
    ...     report = step.run({"day": "2026-11-21"})
    ...     [run] = Runs(jobs).page()
    >>> run.run_id, run.step, run.parameters, run.state, run.counts.written
    (1, 'count', {'day': '2026-11-21'}, 'completed', 5)
    """

    repository: JobRepository = field(validator=instance_of(JobRepository, "a JobRepository"))

    def page(
        self,
        *,
        step: str | None = None,
        status: Status | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[RunStatus]:
        """Runs, the newest first.

        :param step: only those of the step of this name.
        :param status: only those whose row has it; a crashed run has "running".
        :param before: only those that are older than the run of this number: the next page.
        """
        check_at_least_one("limit", limit)
        validation.check_number("limit", limit)
        runs = self.repository.tables.runs
        return self._read(_Wanted(step, status, before).conditions(runs), limit)

    def find(self, run_id: int) -> RunStatus | None:
        """The run of this number, or None."""
        validation.check_number("run_id", run_id)
        found = self._read([self.repository.tables.runs.c.id == run_id], 1)
        return found[0] if found else None

    def _read(self, wanted: Sequence[ColumnElement[bool]], limit: int) -> list[RunStatus]:
        from sqlalchemy import func, select

        runs, messages = self.repository.tables.runs, self.repository.tables.messages
        waiting = select(func.count()).where(messages.c.run == runs.c.id).scalar_subquery()
        with self.repository.read_only() as connection:
            query = select(runs, now(connection).label("now"), waiting.label("unsent"))
            query = query.where(*wanted).order_by(runs.c.id.desc()).limit(limit)
            rows = connection.execute(query).mappings().all()
        return [_status(runs, row) for row in rows]


def _status(runs: Table, stored: RowMapping) -> RunStatus:
    values, problem = readable(runs, stored, RUN)
    row = SimpleNamespace(**{**stored, **values})
    checkpoint, error, parameters = Checkpoint(), None, {}
    try:
        parameters = parsed(runs, values, "parameters", dict)
        if values["digest"] != digest(values["parameters"]):
            raise damaged(runs, values, "digest must be that of the parameters")
        checkpoint, error = read(runs, values)
    except JobRepositoryError as exc:
        problem = problem or str(exc)
    counted = checkpoint.isolating and checkpoint.count is not None
    return RunStatus(
        run_id=row.id,
        parameters=parameters,
        state=_state(row),
        counts=Counts(*(values[name] for name in COUNTS)),
        unsent=row.unsent,
        pending=checkpoint.waiting,
        isolating=checkpoint.isolating,
        suspects=checkpoint.waiting if counted else None,
        isolated_item=None if checkpoint.isolated_item is None else checkpoint.isolated_item + 1,
        exactly_once=bool(row.exactly_once),
        error=error,
        problem=problem,
        **{name: getattr(row, name) for name in AS_THEY_ARE},
    )


def _state(row: Any) -> State:
    if row.status != "running":
        return cast("State", row.status)
    return "running" if is_taken(row) else "crashed"
