"""The journal of a run: one row, and every statement on it.

Each function works in the transaction of the connection that it is given, and blocks; under asyncio
they run inside ``AsyncConnection.run_sync``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve

from retrytemplate._storage.process_liveness import (
    is_this_process,
    is_worker_gone,
    process_fingerprint,
)
from retrytemplate.batch.engine.checkpoint import Checkpoint
from retrytemplate.batch.errors import (
    NotResumableError,
    RunAbandonedError,
    RunExistsError,
    RunInProgressError,
    RunLostError,
)
from retrytemplate.batch.journal.letter_rows import insert_letters
from retrytemplate.batch.journal.letters import digest, sanitize_text
from retrytemplate.batch.journal.message_rows import add_messages, count_messages
from retrytemplate.batch.journal.rows import (
    COUNTS,
    RUN,
    RUN_HOLD,
    RUN_STATE,
    check,
    damaged,
    parsed,
    readable,
)
from retrytemplate.batch.journal.run import Counts, JournalUpdate, Run, RunRequest
from retrytemplate.batch.journal.schema import Tables, clock, new_row, now
from retrytemplate.caches.record_schema import FAILURE, fault
from retrytemplate.errors import RecordedFailure

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from retrytemplate.batch.journal.rows import StoredRow
    from retrytemplate.batch.report import Status

NOT_HELD = {"worker": None, "process": None, "lease_until": None}


def begin(connection: Connection, tables: Tables, request: RunRequest) -> Run:
    """Claim a new or stopped run; a completed run is returned as it is stored.

    :raises JobRepositoryError: its row is damaged.
    """
    row = _lock_latest_run(connection, tables, request)
    if row is None:
        row = _insert(connection, tables, request, 1)
    elif request.on_existing == "refuse":
        raise RunExistsError(
            f"run {row.id} of step {request.step!r} with parameters {request.parameters} already "
            f"exists and is {row.status}; use on_existing='resume' or on_existing='restart'"
        )
    _check_not_taken(request, row)
    if request.on_existing == "restart" and row.fence:
        if row.status != "completed":
            abandon(connection, tables, row.id)
        row = _insert(connection, tables, request, row.generation + 1)
    if row.status == "abandoned":
        raise RunAbandonedError(
            f"{_named(request)} was abandoned; start again with on_existing='restart'"
        )
    run = _run(tables, row, request)
    if run.status == "completed":
        run.already_completed = True
        run.unsent = count_messages(connection, tables, run=run.id)
    else:
        _take(connection, tables, run, row)
    return run


def _named(request: RunRequest) -> str:
    return f"the run of {request.step!r} with {request.parameters}"


def _lock_latest_run(connection: Connection, tables: Tables, request: RunRequest) -> Any:
    from sqlalchemy import select

    runs = tables.runs
    found = (
        select(runs, now(connection).label("now"))
        .where(runs.c.step == request.step, runs.c.digest == digest(request.parameters))
        .order_by(runs.c.generation.desc())
        .limit(1)
    )
    locked = found.with_for_update()
    # A process that held the row may have inserted a newer one before it released the lock.
    _execute_limited(connection, locked, request).first()
    row = _execute_limited(connection, locked, request).first()
    if row is None:  # or its digest is damaged: a second run would do everything once more
        same = select(runs).where(
            runs.c.step == request.step, runs.c.parameters == request.parameters
        )
        row = connection.execute(same.limit(1)).first()
    if row is not None:
        check(runs, row, RUN_HOLD)
        for name, must in (
            ("parameters", request.parameters),
            ("digest", digest(request.parameters)),
        ):
            if row._mapping[name] != must:
                raise damaged(runs, row._mapping, f"{name} must be that of {request.parameters}")
    return row


def _insert(connection: Connection, tables: Tables, request: RunRequest, generation: int) -> Any:
    """Insert a row; if another process was faster, return the row of that process."""
    insertion = new_row(connection, tables.runs).values(
        step=request.step,
        parameters=request.parameters,
        digest=digest(request.parameters),
        generation=generation,
        status="running",
        fence=0,
        seq=0,
        checkpoint=_text(Checkpoint().to_json()),
        exactly_once=int(request.exactly_once),
        code_version=request.code_version,
        started=now(connection),
        done_before=0,
        updated=now(connection),
        **asdict(Counts()),
    )
    _execute_limited(connection, insertion, request)
    return _lock_latest_run(connection, tables, request)


def _is_held(row: Any) -> bool:
    """Whether the run is held: its holder has not released it."""
    return bool(row.status == "running" and row.worker is not None)


def is_taken(row: Any) -> bool:
    """Whether a process holds the run: its lease has not expired, and it may still exist."""
    return (
        _is_held(row)
        and row.lease_until is not None
        and row.lease_until > row.now
        and not is_worker_gone(row.worker, row.process)
    )


def _check_not_taken(request: RunRequest, row: Any) -> None:
    """Raise unless the lease has expired, or its process is gone."""
    if is_taken(row):
        raise RunInProgressError(
            f"{_named(request)} is in progress in {row.worker}, whose lease has "
            f"{row.lease_until - row.now:.1f} s left",
            worker=row.worker,
            lease_until=row.lease_until,
        )


def read(runs: Table, row: StoredRow) -> tuple[Checkpoint, RecordedFailure | None]:
    """The chunk in progress of a run, and the failure that ended the run.

    :raises JobRepositoryError: they cannot be read, or contradict the run's counts.
    """
    checkpoint = parsed(runs, row, "checkpoint", Checkpoint.from_json)
    error = None if row["error"] is None else parsed(runs, row, "error", _failure)
    done = row["written"] + row["filtered"] + row["dead_lettered"]
    in_flight = checkpoint.count or 0
    faults = {
        "read, written, filtered, dead_lettered, checkpoint: "
        f"{row['read']} read, but {done} done and {checkpoint.waiting} pending": row["read"]
        != done + checkpoint.waiting,
        f"checkpoint: count {in_flight} of {row['read']} read": in_flight > row["read"],
        "checkpoint: position must not be null behind the first chunk": checkpoint.position is None
        and row["read"] != in_flight,
        "crashes: fewer than the checkpoint has": row["crashes"]
        < checkpoint.unattributed_crashes + sum(map(len, checkpoint.crashes.values())),
        "skipped: more than dead_lettered": row["skipped"] > row["dead_lettered"],
        "fence: 0, but the run was taken": row["seq"] > 0 and not row["fence"],
        "status: completed, but items are pending": row["status"] == "completed"
        and checkpoint.waiting > 0,
    }
    for wrong, found in faults.items():
        if found:
            raise damaged(runs, row, wrong)
    return checkpoint, error


def _failure(data: Any) -> RecordedFailure:
    wrong = fault("", data if isinstance(data, dict) else {}, FAILURE, ("type", "message"))
    if wrong is not None:
        raise ValueError(wrong)
    return RecordedFailure(data["type"], data["message"], None)


def _run(tables: Tables, row: Any, request: RunRequest) -> Run:
    check(tables.runs, row, RUN_STATE)
    checkpoint, error = read(tables.runs, row._mapping)
    return Run(
        id=row.id,
        request=request
        if row.status != "completed"
        else evolve(request, exactly_once=bool(row.exactly_once)),
        fence=row.fence + 1,
        seq=row.seq,
        status=row.status,
        counts=_counts(row),
        checkpoint=checkpoint,
        error=error,
    )


def _counts(row: Any) -> Counts:
    return Counts(*(getattr(row, name) for name in COUNTS))


def _take(connection: Connection, tables: Tables, run: Run, row: Any) -> None:
    if row.fence and not run.request.resumable:
        raise NotResumableError(
            f"{_named(run.request)} {row.status} after {run.counts.read} items, and its reader "
            "cannot read them again; start again with on_existing='restart'"
        )
    if _is_held(row) and not is_this_process(row.process):  # it crashed
        run.counts += Counts(crashes=1)
        run.checkpoint = run.checkpoint.after_crash(row.worker, row.now)
    run.checkpoint = run.checkpoint.after_claim(gate_is_open=run.request.gate_is_open())
    run.status, run.error = "running", None
    _update(
        connection,
        tables,
        run,
        {
            "fence": run.fence,
            "status": "running",
            "worker": run.request.worker,
            "process": process_fingerprint(),
            "checkpoint": _text(run.checkpoint.to_json()),
            "crashes": run.counts.crashes,
            "error": None,
            "ended": None,
            "code_version": run.request.code_version,
            "done_before": run.counts.done,
        },
        times=("taken",),
        fence=row.fence,
    )
    run.seq += 1


def close(connection: Connection, tables: Tables, run: Run, update: JournalUpdate) -> None:
    """Write the update of a part of the run, in the transaction of its items.

    :raises RunLostError: another process has taken the run over.
    """
    insert_letters(connection, tables, run, update.letters)
    add_messages(connection, tables, run.id, run.request.step, update.messages)
    values: dict[str, Any] = {"checkpoint": _text(update.checkpoint.to_json())}
    if update.counts != Counts():
        values |= asdict(run.counts + update.counts)
    if update.progress is not None:
        values["progress"] = update.progress
    _update(connection, tables, run, values)


def is_applied(connection: Connection, tables: Tables, run: Run) -> bool:
    """Whether the transaction whose commit has no known result was committed."""
    return bool(_lock_held_run(connection, tables, run).seq == run.seq + 1)


def _lock_held_run(connection: Connection, tables: Tables, run: Run) -> Any:
    """The run's row, locked: a commit in progress ends first."""
    from sqlalchemy import select

    runs = tables.runs
    locked = select(runs).where(runs.c.id == run.id).with_for_update()
    row = _execute_limited(connection, locked, run.request).one()
    check(runs, row, RUN_HOLD)
    if row.fence != run.fence:
        raise _lost(run)
    return row


def _catch_up(connection: Connection, tables: Tables, run: Run) -> None:
    """Adopt the result of an interrupted commit."""
    row = _lock_held_run(connection, tables, run)
    if row.seq != run.seq:
        check(tables.runs, row, RUN_STATE)
        checkpoint, _ = read(tables.runs, row._mapping)
        run.seq, run.counts, run.checkpoint = row.seq, _counts(row), checkpoint


def end(connection: Connection, tables: Tables, run: Run, status: Status) -> None:
    """End the run, and release it."""
    _catch_up(connection, tables, run)
    checkpoint = run.checkpoint.after_stop()
    error = None
    if run.error is not None:
        _, failure = run.request.limits.fit(run.error)
        error = _text({"type": failure.type_name, "message": sanitize_text(failure.message)})
    _update(
        connection,
        tables,
        run,
        {
            "status": status,
            "worker": None,
            "process": None,
            "checkpoint": _text(checkpoint.to_json()),
            "error": error,
        },
        times=("ended",),
        leased=False,
    )
    run.seq += 1
    run.unsent = count_messages(connection, tables, run=run.id)
    run.checkpoint, run.status = checkpoint, status


def renew(connection: Connection, tables: Tables, run: Run) -> None:
    """Extend the lease of the run by its duration.

    :raises RunLostError: another process has taken the run over.
    """
    runs = tables.runs
    change = (
        runs.update()
        .where(runs.c.id == run.id, runs.c.fence == run.fence, runs.c.status == "running")
        .values(lease_until=now(connection) + run.request.lease)
    )
    if not _execute_limited(connection, change, run.request).rowcount:
        raise _lost(run)


def release(connection: Connection, tables: Tables, worker: str) -> None:
    """Release the runs of this worker, which was interrupted before it could."""
    runs = tables.runs
    connection.execute(
        runs.update()
        .where(runs.c.worker == worker, runs.c.status == "running")
        .values(
            status="stopped",
            seq=runs.c.seq + 1,
            ended=now(connection),
            **NOT_HELD,
        )
    )


def abandon(connection: Connection, tables: Tables, run_id: int) -> bool:
    """Abandon a run: its holder can no longer write.  False: no such run, or it has ended."""
    runs = tables.runs
    given_up = connection.execute(
        runs.update()
        .where(runs.c.id == run_id, runs.c.status.not_in(("completed", "abandoned")))
        .values(
            status="abandoned",
            fence=runs.c.fence + 1,
            updated=now(connection),
            ended=now(connection),
            **NOT_HELD,
        )
    )
    return bool(given_up.rowcount)


def _update(
    connection: Connection,
    tables: Tables,
    run: Run,
    values: dict[str, Any],
    *,
    times: tuple[str, ...] = (),
    fence: int | None = None,
    leased: bool = True,
) -> None:
    """Change the run's row if no other process has changed it.

    :param times: columns that get the database's time.
    """
    change = _change(tables, connection.dialect.name, tuple(values), times, leased)
    given = {f"new_{name}": value for name, value in values.items()}
    given |= {
        "of_run": run.id,
        "of_fence": run.fence if fence is None else fence,
        "of_seq": run.seq,
    }
    if leased:
        given["lease"] = run.request.lease
    given |= _idle_limit(connection, run.request)
    if connection.execute(change, given).rowcount != 1:
        raise _lost(run)


@lru_cache
def _change(
    tables: Tables, dialect: str, names: tuple[str, ...], times: tuple[str, ...], leased: bool
) -> Any:
    """The statement of ``_update``, cached: every chunk executes it."""
    from sqlalchemy import bindparam

    runs, time = tables.runs, clock(dialect)
    lease = bindparam("lease", type_=runs.c.lease_until.type)
    change = (
        runs.update()
        .where(
            runs.c.id == bindparam("of_run"),
            runs.c.fence == bindparam("of_fence"),
            runs.c.seq == bindparam("of_seq"),
        )
        .values(
            seq=runs.c.seq + 1,
            updated=time,
            lease_until=time + lease if leased else None,
            **{name: bindparam(f"new_{name}") for name in names},
            **dict.fromkeys(times, time),
        )
    )
    return _limit_idle_time(change, dialect)


def newest_progress(connection: Connection, tables: Tables) -> dict[str, float | None]:
    """The progress of the newest run of each step; None: it is unknown."""
    from sqlalchemy import func, select

    runs = tables.runs
    columns = {name: RUN[name] for name in ("id", "step", "progress")}
    newest = select(func.max(runs.c.id)).group_by(runs.c.step)
    query = select(*(runs.c[name] for name in columns)).where(runs.c.id.in_(newest))
    rows = [readable(runs, row, columns)[0] for row in connection.execute(query).mappings()]
    return {row["step"]: row["progress"] for row in rows}


def _execute_limited(connection: Connection, statement: Any, request: RunRequest) -> Any:
    limited = _limit_idle_time(statement, connection.dialect.name)
    return connection.execute(limited, _idle_limit(connection, request))


def _limit_idle_time(statement: Any, dialect: str) -> Any:
    """Let the server end the transaction of a locking statement when it is idle for a lease.

    A process that is stopped before its commit must not keep the row locked.
    """
    if dialect != "postgresql":
        return statement
    from sqlalchemy import bindparam, func

    timeout = "idle_in_transaction_session_timeout"
    limit = func.set_config(timeout, bindparam("idle_limit"), True)
    return statement.add_columns(limit) if statement.is_select else statement.returning(limit)


def _idle_limit(connection: Connection, request: RunRequest) -> dict[str, str]:
    """The parameter of a statement of ``_limit_idle_time``."""
    if connection.dialect.name != "postgresql":
        return {}
    return {"idle_limit": f"{request.lease * 1000:.0f}"}


def _lost(run: Run) -> RunLostError:
    return RunLostError(
        f"this process no longer holds run {run.id} of {run.request.step!r}: another process "
        "took it over after its lease expired, or it was abandoned"
    )


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
