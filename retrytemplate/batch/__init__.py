"""Chunk steps: a job that reads, processes and writes many items, and goes on where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes

if TYPE_CHECKING:
    from retrytemplate.batch.codec import Codec, JsonCodec
    from retrytemplate.batch.dead_letters import (
        AuditEntry,
        DeadLetter,
        DeadLetters,
        Discarding,
        LetterFilter,
    )
    from retrytemplate.batch.errors import (
        CrashLoopError,
        JobRepositoryError,
        NotResumableError,
        ProcessCrashedError,
        ReaderError,
        ReadError,
        RunAbandonedError,
        RunExistsError,
        RunInProgressError,
        RunLostError,
        SkipLimitExceededError,
    )
    from retrytemplate.batch.events import Event, StepListener
    from retrytemplate.batch.explain import Explanation, Scenario
    from retrytemplate.batch.journal.repository import JobRepository
    from retrytemplate.batch.outbox import (
        Message,
        Outbox,
        SendReport,
        UnsentMessage,
        UnsentMessages,
    )
    from retrytemplate.batch.readers.base import AsyncCursor, Cursor, Reader, Records
    from retrytemplate.batch.readers.csv import CsvReader
    from retrytemplate.batch.readers.iterables import ForwardReader, SequenceReader, as_reader
    from retrytemplate.batch.readers.json_lines import JsonLinesReader
    from retrytemplate.batch.readers.multi_file import FilesReader
    from retrytemplate.batch.readers.query import QueryReader
    from retrytemplate.batch.replay import ReplayReport
    from retrytemplate.batch.report import Report, StepFailedError
    from retrytemplate.batch.run_status import Runs, RunStatus
    from retrytemplate.batch.skip import SkipPolicy
    from retrytemplate.batch.step import ChunkStep
    from retrytemplate.batch.writers import UpsertWriter

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.batch.codec": (
            "Codec",
            "JsonCodec",
        ),
        "retrytemplate.batch.dead_letters": (
            "AuditEntry",
            "DeadLetter",
            "DeadLetters",
            "Discarding",
            "LetterFilter",
        ),
        "retrytemplate.batch.errors": (
            "CrashLoopError",
            "JobRepositoryError",
            "NotResumableError",
            "ProcessCrashedError",
            "ReadError",
            "ReaderError",
            "RunAbandonedError",
            "RunExistsError",
            "RunInProgressError",
            "RunLostError",
            "SkipLimitExceededError",
        ),
        "retrytemplate.batch.events": (
            "Event",
            "StepListener",
        ),
        "retrytemplate.batch.explain": (
            "Explanation",
            "Scenario",
        ),
        "retrytemplate.batch.journal.repository": ("JobRepository",),
        "retrytemplate.batch.outbox": (
            "Message",
            "Outbox",
            "SendReport",
            "UnsentMessage",
            "UnsentMessages",
        ),
        "retrytemplate.batch.readers.base": (
            "AsyncCursor",
            "Cursor",
            "Reader",
            "Records",
        ),
        "retrytemplate.batch.readers.csv": ("CsvReader",),
        "retrytemplate.batch.readers.iterables": (
            "ForwardReader",
            "SequenceReader",
            "as_reader",
        ),
        "retrytemplate.batch.readers.json_lines": ("JsonLinesReader",),
        "retrytemplate.batch.readers.multi_file": ("FilesReader",),
        "retrytemplate.batch.readers.query": ("QueryReader",),
        "retrytemplate.batch.replay": ("ReplayReport",),
        "retrytemplate.batch.report": (
            "Report",
            "StepFailedError",
        ),
        "retrytemplate.batch.run_status": (
            "RunStatus",
            "Runs",
        ),
        "retrytemplate.batch.skip": ("SkipPolicy",),
        "retrytemplate.batch.step": ("ChunkStep",),
        "retrytemplate.batch.writers": ("UpsertWriter",),
    },
)

__all__ = [
    "AsyncCursor",
    "AuditEntry",
    "ChunkStep",
    "Codec",
    "CrashLoopError",
    "CsvReader",
    "Cursor",
    "DeadLetter",
    "DeadLetters",
    "Discarding",
    "Event",
    "Explanation",
    "FilesReader",
    "ForwardReader",
    "JobRepository",
    "JobRepositoryError",
    "JsonCodec",
    "JsonLinesReader",
    "LetterFilter",
    "Message",
    "NotResumableError",
    "Outbox",
    "ProcessCrashedError",
    "QueryReader",
    "ReadError",
    "Reader",
    "ReaderError",
    "Records",
    "ReplayReport",
    "Report",
    "RunAbandonedError",
    "RunExistsError",
    "RunInProgressError",
    "RunLostError",
    "RunStatus",
    "Runs",
    "Scenario",
    "SendReport",
    "SequenceReader",
    "SkipLimitExceededError",
    "SkipPolicy",
    "StepFailedError",
    "StepListener",
    "UnsentMessage",
    "UnsentMessages",
    "UpsertWriter",
    "as_reader",
]
