"""A chunk-oriented step: read, process, write, one transaction per chunk."""

from __future__ import annotations

import gc
from contextlib import asynccontextmanager, suppress
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Literal
from warnings import warn

from attrs import evolve, field, frozen

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.failure_text import to_recorded_failure
from retrytemplate._internal.validation import instance_of
from retrytemplate._storage.cancellation import run_uninterrupted
from retrytemplate._storage.operation_runner import Operation, perform, perform_async
from retrytemplate._storage.process_liveness import register_active_worker
from retrytemplate.backoff.base import Backoff, NoBackoff
from retrytemplate.batch import events, validation
from retrytemplate.batch.codec import Codec, JsonCodec
from retrytemplate.batch.dead_letters import LetterFilter
from retrytemplate.batch.engine.fault_search import FAULT_SEARCHES
from retrytemplate.batch.engine.machine import Machine
from retrytemplate.batch.engine.rules import Rules
from retrytemplate.batch.errors import JobRepositoryError, RunLostError
from retrytemplate.batch.journal import runs
from retrytemplate.batch.journal.message_rows import count_messages
from retrytemplate.batch.journal.repository import JobRepository
from retrytemplate.batch.journal.run import Run, RunRequest, StopFlag, encode_parameters
from retrytemplate.batch.outbox import Outbox, SendReport, deliver
from retrytemplate.batch.readers.iterables import as_reader
from retrytemplate.batch.replay import Ledger, ReplayRequest, find, replay_steps
from retrytemplate.batch.runner.asynchronous import AsyncDriver
from retrytemplate.batch.runner.attempts import ROLLBACKS, SAVEPOINTS
from retrytemplate.batch.runner.heartbeat import AsyncHeartbeat, Heartbeat
from retrytemplate.batch.runner.sync import Driver
from retrytemplate.batch.skip import SkipPolicy
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.errors import MisuseError
from retrytemplate.policies.base import RetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.template import RetryTemplate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from retrytemplate.batch.explain import Explanation, Scenario
    from retrytemplate.batch.replay import ReplayReport
    from retrytemplate.batch.report import Report, Status
    from retrytemplate.batch.runner.transactions import AsyncTransactions, Transactions
    from retrytemplate.control.isolation_gate.gate import ProcessGate

    OnExisting = Literal["resume", "restart", "refuse"]


def _release_frames(error: BaseException) -> None:
    """Clear the frames that a signal interrupted: a cursor there keeps a SQLite file locked."""
    if not isinstance(error, Exception):
        clear_frames(error.__traceback__)
        gc.collect()


def _check_not_awaited(twin: str, **components: Any) -> None:
    for name, function in components.items():
        if is_async(function):
            raise MisuseError(f"the {name} is asynchronous; use {twin}()")


@frozen(eq=False)
class ChunkStep(events.Observable):
    """Reads items, processes each, and writes them a chunk at a time, each exactly once.

    :param name: of the step; it identifies a run together with its parameters.
    :param reader: a reader, a sequence, or any iterable.  What can be read only once is kept in
        the journal, a chunk at a time, hence has to be something that the codec can keep.
    :param processor: ``(item) -> item``, or None to filter the item out; None: items as they are.
        It runs outside of the transaction, once an item and process unless it fails.
    :param writer: ``(items, transaction) -> None``; the transaction is a connection of SQLAlchemy.
    :param chunk_size: items a transaction.
    :param repository: the journal.
    :param database: an engine where the writer writes; None: the repository's own: exactly once.
        With another one a crash between the two commits writes a chunk again: at least once.
    :param retry: policy of each item's processing and of each write, or a ``RetryTemplate``.
    :param backoff: between the attempts; no transaction is open meanwhile.
    :param skip: which failures give an item up, and how many; None: none, a failure ends the run.
    :param max_crashes: crashes of the process while the item is isolated, before it is given up;
        default 2.  With 1 an item may be given up for an effect of earlier items in that process.
    :param gate: entered by each chunk, exclusively after a crash; None: the process's.  Give a
        ``HostGate`` to steps in processes that crash together.
    :param key: of an item, for its dead letter; None: its source and number.
    :param codec: keeps items as text: dead letters, and what cannot be read again.
    :param rollback: of a failed attempt to write: of the "transaction", or to a
        "savepoint", or "none": called again in place.
    :param fault_search: how the items at fault are found when a chunk cannot be written: "bisect",
        "linear" (one by one), or "chunk" (all of them are given up).
    :param concurrency: calls of the processor at once, in threads, or under ``run_async`` in tasks.
    :param pure: False: the processor works in the transaction, called ``(item, transaction)``, and
        again for each attempt to write; what fails there counts as a failed write.
    :param after_commit: ``(items) -> None``, called with the items of a committed transaction; not
        after a crash in between.  Its exceptions are logged.
    :param outbox: messages about written items, which are not lost in a crash.
    :param listeners: notified of every event, see ``StepListener``.
    :param code_version: kept with dead letters.

    >>> from tempfile import TemporaryDirectory
    >>> from sqlalchemy import text
    >>> def write(items, transaction):
    ...     rows = [{"square": item} for item in items]
    ...     transaction.execute(text("INSERT INTO squares VALUES (:square)"), rows)
    >>> with TemporaryDirectory() as folder, JobRepository(f"sqlite:///{folder}/jobs.db") as jobs:
    ...     with jobs.transaction() as transaction:
    ...         _ = transaction.execute(text("CREATE TABLE squares (square)"))
    ...     step = ChunkStep(
    ...         "square",
    ...         reader=range(5),
    ...         processor=lambda number: number * number,
    ...         writer=write,
    ...         chunk_size=2,
    ...         repository=jobs,
    ...     )
    ...     report = step.run()
    >>> report.status, report.read, report.written
    ('completed', 5, 5)

    Source: the chunk-oriented, fault-tolerant step of Spring Batch.
    """

    name: str = field(validator=validation.name)
    reader: Any = field(kw_only=True, converter=as_reader)
    processor: Callable[[Any], Any] | None = field(
        default=None, kw_only=True, validator=validation.function_or_none
    )
    writer: Callable[[Any, Any], Any] = field(kw_only=True, validator=validation.function)
    chunk_size: int = field(default=100, kw_only=True, validator=validation.at_least_one)
    repository: JobRepository = field(
        kw_only=True, validator=instance_of(JobRepository, "a JobRepository")
    )
    database: Any = field(default=None, kw_only=True, validator=validation.database)
    retry: RetryPolicy | RetryTemplate = field(
        factory=SimpleRetryPolicy,
        kw_only=True,
        validator=instance_of((RetryPolicy, RetryTemplate), "a RetryPolicy or a RetryTemplate"),
    )
    backoff: Backoff = field(
        factory=NoBackoff, kw_only=True, validator=instance_of(Backoff, "a Backoff")
    )
    skip: SkipPolicy = field(
        default=None,
        kw_only=True,
        converter=validation.skip_policy,
        validator=instance_of(SkipPolicy, "a SkipPolicy or None"),
    )
    max_crashes: int = field(default=2, kw_only=True, validator=validation.at_least_one)
    gate: ProcessGate = field(default=None, kw_only=True, converter=validation.gate)
    key: Callable[[Any], Any] | None = field(default=None, kw_only=True, validator=validation.key)
    codec: Codec = field(factory=JsonCodec, kw_only=True, validator=validation.codec)
    rollback: str = field(
        default="transaction", kw_only=True, validator=validation.one_of(*ROLLBACKS)
    )
    fault_search: str = field(
        default="bisect", kw_only=True, validator=validation.one_of(*FAULT_SEARCHES)
    )
    concurrency: int = field(default=1, kw_only=True, validator=validation.at_least_one)
    pure: bool = field(default=True, kw_only=True, validator=instance_of(bool, "True or False"))
    after_commit: Callable[[Any], Any] | None = field(
        default=None, kw_only=True, validator=validation.function_or_none
    )
    outbox: Outbox | None = field(
        default=None,
        kw_only=True,
        validator=instance_of((Outbox, type(None)), "an Outbox or None"),
    )
    listeners: tuple[Any, ...] = field(
        default=(), kw_only=True, converter=validation.tuple_of, validator=validation.listeners
    )
    code_version: str | None = field(default=None, kw_only=True, validator=validation.text_or_none)
    _stop: StopFlag = field(init=False, factory=StopFlag, repr=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.retry, RetryTemplate) and self.backoff != NoBackoff():
            raise ValueError(
                f"backoff must be left out where retry is a RetryTemplate, got {self.backoff!r}"
            )
        if not self.pure and (self.processor is None or self.concurrency > 1):
            raise ValueError(
                "pure=False needs a processor, and concurrency=1: it works in the one transaction"
            )
        if not self.resumable:
            warn(
                f"{self.reader!r} reads forward only and keeps no journal: a run of {self.name!r} "
                "that is cut off cannot be resumed",
                stacklevel=3,
            )

    @property
    def exactly_once(self) -> bool:
        """Whether the items are written in the journal's own transactions."""
        return self.database is None

    @property
    def resumable(self) -> bool:
        """Whether a stopped run can be resumed: its items can be read again, or are kept."""
        return bool(self.reader.seekable or self.reader.journal)

    def stop(self) -> None:
        """End the run after its present chunk; callable from any thread or signal handler."""
        self._stop.requested = True

    def run(
        self, parameters: Mapping[str, Any] | None = None, on_existing: OnExisting = "resume"
    ) -> Report:
        """Run from the state in the journal to the end, in this thread.

        :param parameters: JSON values; with the name of the step they identify a run.
        :param on_existing: of a run that exists: "resume" it where it stopped (a completed one is
            reported as it is, after its messages that wait were sent), "restart": abandon it and
            begin again, "refuse".
        :returns: the report; a failure that ended the run is in it, see
            ``Report.raise_for_status``.
        :raises MisuseError: a component is asynchronous.
        :raises RunInProgressError: another process holds the run.
        :raises RunLostError: another process has taken the run over.
        :raises JobRepositoryError: the journal cannot be written: the run stays where it was.
        """
        self._check_blocking("run_async")
        transactions = self._transactions()
        request = self._request(parameters, on_existing)
        with register_active_worker(request.worker), self._stop.active(request.worker):
            try:
                return perform(self._run(request, transactions, Driver, Heartbeat))
            except BaseException as error:  # a signal, perhaps while it is taken or released
                _release_frames(error)
                # After a lease the run is free, whether or not this worker lets go of it.
                run_uninterrupted(
                    lambda: transactions.run_in_transaction(runs.release, request.worker),
                    request.lease,
                    ignored=(JobRepositoryError,),
                )
                raise

    async def run_async(
        self, parameters: Mapping[str, Any] | None = None, on_existing: OnExisting = "resume"
    ) -> Report:
        """The same in a task of asyncio; reader, processor and writer may be asynchronous.

        An asynchronous writer gets an ``AsyncConnection``, another one a ``Connection``.
        """
        self._check_awaited("run")
        request = self._request(parameters, on_existing)
        async with self._async_transactions() as transactions:
            with register_active_worker(request.worker), self._stop.active(request.worker):
                try:
                    return await perform_async(
                        self._run(request, transactions, AsyncDriver, AsyncHeartbeat)
                    )
                except BaseException:  # a cancellation, perhaps while it is taken or released
                    with suppress(JobRepositoryError):
                        await transactions.run_in_transaction(runs.release, request.worker)
                    raise

    def replay(
        self,
        ids: Sequence[int] | None = None,
        *,
        error: str | None = None,
        key: str | None = None,
        by: str | None = None,
    ) -> ReplayReport:
        """Process and write the items of open dead letters of this step, with new retries.

        Each in its own transaction, which also resolves its letter: concurrent replays replay a
        letter once.  A letter whose item fails again stays open.

        :param ids: of the letters; None: all that match *error* and *key*, except items that
            crashed their process.
        :param error: only those with this exception, named with its module or without.
        :param key: only those of this key.
        :param by: the operator, for the audit; None: this process's worker name.
        """
        self._check_blocking("replay_async")
        replay = self._replay(self._transactions(Ledger), Driver, ids, by, error=error, key=key)
        return perform(replay)

    async def replay_async(
        self,
        ids: Sequence[int] | None = None,
        *,
        error: str | None = None,
        key: str | None = None,
        by: str | None = None,
    ) -> ReplayReport:
        """The same in a task of asyncio."""
        self._check_awaited("replay")
        async with self._async_transactions(Ledger) as transactions:
            replay = self._replay(transactions, AsyncDriver, ids, by, error=error, key=key)
            return await perform_async(replay)

    def send_outbox(self) -> SendReport:
        """Send the messages of this step that wait in the outbox, of all its runs.

        A process that holds a run sends the messages of that run itself.  Two senders at once may
        send a message twice, with the same id.

        :raises MisuseError: the step has no outbox, or its ``send`` must be awaited.
        :raises JobRepositoryError: the repository cannot be reached.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, JobRepository(f"sqlite:///{folder}/j.db") as jobs:
        ...     step = ChunkStep(
        ...         "copy",
        ...         reader=[],
        ...         writer=print,
        ...         repository=jobs,
        ...         outbox=Outbox(send=print, message=lambda item: item),
        ...     )
        ...     step.send_outbox()
        SendReport(sent=0, unsent=0, error=None)
        """
        _check_not_awaited("send_outbox_async", outbox=self._given_outbox().send)
        return perform(self._send_outbox(self._transactions(), Driver))

    async def send_outbox_async(self) -> SendReport:
        """The same in a task of asyncio; ``send`` may be asynchronous."""
        self._given_outbox()
        async with self._async_transactions() as transactions:
            return await perform_async(self._send_outbox(transactions, AsyncDriver))

    def explain(self, scenario: Scenario) -> Explanation:
        """The handling of failing items by this configuration, as a table.

        >>> from retrytemplate.batch import Scenario, SkipPolicy
        >>> step = ChunkStep(
        ...     "copy",
        ...     reader=[],
        ...     writer=print,
        ...     chunk_size=4,
        ...     repository=JobRepository("sqlite:///jobs.db"),
        ...     retry=SimpleRetryPolicy(1),
        ...     skip=SkipPolicy(on=ValueError),
        ... )
        >>> print(step.explain(Scenario(items=2, write={2: ValueError("no number")})))
        tx1  write [1,2] fails (ValueError); ROLLBACK
        tx2  write [1], write [2] fails (ValueError), dead letter 2; COMMIT
        completed: read 2, written 1, filtered 0, dead_lettered 1, retries 0, rollbacks 2
        """
        from retrytemplate.batch.explain import explain

        def run(**settings: Any) -> Report:
            return evolve(self, **settings).run()

        return explain(run, scenario, self.template, processes=self.processor is not None)

    def _run(
        self, request: RunRequest, transactions: Transactions, driver: Any, heartbeat: Any
    ) -> Operation[Report]:
        run: Run = yield transactions.run_in_transaction(runs.begin, request)
        if run.status != "completed":
            beat = heartbeat(
                lambda: transactions.run_in_transaction(runs.renew, run), self.repository.lease
            )
            parts = self._parts(run, transactions) | {"heartbeat": beat}
            yield from self._run_to_end(run, transactions, driver(**parts))
        elif self.outbox is not None:
            steps = self._machine(run).send(others=True)
            yield driver(**self._parts(run, transactions)).perform(steps)
            run.unsent = yield transactions.run_in_transaction(count_messages, None, run.id)
        return run.report()

    def _run_to_end(self, run: Run, transactions: Transactions, driver: Any) -> Operation[None]:
        try:
            status: Status = yield driver.perform(self._machine(run).steps())
        except RunLostError:
            raise
        except BaseException as error:  # a signal, or an error outside of the rules
            run.error = to_recorded_failure(error)
            if isinstance(driver, Driver):
                _release_frames(error)
            status = "failed" if isinstance(error, Exception) else "stopped"
            with suppress(JobRepositoryError, RunLostError):
                yield transactions.run_in_transaction(runs.end, run, status)
            raise
        yield transactions.run_in_transaction(runs.end, run, status)

    def _replay(
        self, transactions: Transactions, driver: Any, ids: Any, by: str | None, **which: Any
    ) -> Operation[ReplayReport]:
        if ids is not None:
            validation.check_ids("ids", ids, "a sequence of ints or None")
        filters = LetterFilter(step=self.name, state="open", **which)
        request = ReplayRequest(self.name, self.repository.limits, by)
        letters = yield transactions.run_in_transaction(find, filters, ids)
        # No failure of an item ends it, only a rejection by the template.
        parts = self._parts(request, transactions) | {"is_fatal": lambda _: False}
        steps = replay_steps(self._rules(), request, letters)
        report: ReplayReport = yield driver(**parts).perform(steps)
        unsent = yield transactions.run_in_transaction(count_messages, self.name)
        return evolve(report, unsent=unsent)

    def _send_outbox(self, transactions: Transactions, driver: Any) -> Operation[SendReport]:
        parts = self._parts(None, transactions)
        sent, failures = yield driver(**parts).perform(deliver(self.name))
        unsent = yield transactions.run_in_transaction(count_messages, self.name)
        error = to_recorded_failure(failures[0]) if failures else None
        return SendReport(sent=sent, unsent=unsent, error=error)

    def _given_outbox(self) -> Outbox:
        if self.outbox is None:
            raise MisuseError(f"step {self.name!r} has no outbox: give it outbox=Outbox(...)")
        return self.outbox

    def _check_blocking(self, twin: str) -> None:
        send = None if self.outbox is None else self.outbox.send
        _check_not_awaited(twin, processor=self.processor, writer=self.writer, outbox=send)
        if hasattr(self.database, "sync_engine"):
            raise MisuseError(f"database is an AsyncEngine: use {twin}(), or give an Engine")

    def _check_awaited(self, twin: str) -> None:
        if self.database is not None and not hasattr(self.database, "sync_engine"):
            raise MisuseError(f"database is an Engine: use {twin}(), or give an AsyncEngine")

    def _transactions(self, ledger: Any = runs) -> Transactions:
        return Driver.transactions_type(**self._written_with(ledger))

    @asynccontextmanager
    async def _async_transactions(self, ledger: Any = runs) -> AsyncIterator[AsyncTransactions]:
        async with self.repository.asynchronous_engine() as engine:
            yield AsyncDriver.transactions_type(async_engine=engine, **self._written_with(ledger))

    def _written_with(self, ledger: Any) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "writer": self.writer,
            "database": self.database,
            "rollback": self.rollback,
            "processor": None if self.pure else self.processor,
            "outbox": self.outbox,
            "ledger": ledger,
        }

    def _machine(self, run: Run) -> Machine:
        return Machine(self._rules(), run, lambda: self._stop.requested)

    def _parts(self, run: Run | ReplayRequest | None, transactions: Any) -> dict[str, Any]:
        return {
            "reader": self.reader,
            "processor": self.processor,
            "template": self.template,
            "concurrency": self.concurrency,
            "is_fatal": lambda failure: not self.skip.covers(failure),
            "transactions": transactions,
            "run": run,
            "gate": self.gate,
            "listeners": self._current_listeners(),
            "after_commit": self.after_commit,
            "outbox": self.outbox,
        }

    def _request(self, parameters: Mapping[str, Any] | None, on_existing: str) -> RunRequest:
        return RunRequest(
            step=self.name,
            parameters=encode_parameters(parameters),
            worker=worker_name(),
            lease=self.repository.lease,
            on_existing=on_existing,
            resumable=self.resumable,
            exactly_once=self.exactly_once,
            code_version=self.code_version,
            limits=self.repository.limits,
            gate_is_open=self.gate.is_open,
        )

    @property
    def template(self) -> RetryTemplate:
        """The template that retries the calls of the processor and the writes."""
        if isinstance(self.retry, RetryTemplate):
            return self.retry
        return RetryTemplate(policy=self.retry, backoff=self.backoff, name=self.name)

    def _rules(self) -> Rules:
        template = self.template
        known = self.database is None or self.database.dialect.name in SAVEPOINTS
        return Rules(
            chunk_size=self.chunk_size,
            skip=self.skip,
            max_crashes=self.max_crashes,
            fault_search=self.fault_search,  # type: ignore[arg-type]  # checked above
            key=self.key,
            codec=self.codec,
            uses_processor=self.pure and self.processor is not None,
            stores_payloads=not self.reader.seekable and self.reader.journal,
            outbox=self.outbox,
            after_commit=self.after_commit is not None,
            has_listeners=bool(self._current_listeners()),
            savepoints=self.rollback != "none" and known,
            may_wait=template.backoff != NoBackoff() or bool(template.guards),
        )
