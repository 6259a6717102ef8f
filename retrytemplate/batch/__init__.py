"""Chunk steps: jobs that read, process and write many items, and resume where they stopped."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.batch.codec": "Codec JsonCodec",
        "retrytemplate.batch.dead_letters": (
            "AuditEntry DeadLetter DeadLetters Discarding LetterFilter"
        ),
        "retrytemplate.batch.errors": (
            "JobRepositoryError NotResumableError ProcessCrashedError ReadError "
            "ReaderError RunAbandonedError RunExistsError RunInProgressError RunLostError "
            "SkipLimitExceededError"
        ),
        "retrytemplate.batch.events": "Event StepListener",
        "retrytemplate.batch.explain": "Explanation Scenario",
        "retrytemplate.batch.journal.repository": "JobRepository RepositorySnapshot",
        "retrytemplate.batch.outbox": "Message Outbox SendReport UnsentMessage UnsentMessages",
        "retrytemplate.batch.readers.base": "AsyncCursor Cursor Reader Records",
        "retrytemplate.batch.readers.csv": "CsvReader",
        "retrytemplate.batch.readers.iterables": "ForwardReader SequenceReader as_reader",
        "retrytemplate.batch.readers.json_lines": "JsonLinesReader",
        "retrytemplate.batch.readers.multi_file": "FilesReader",
        "retrytemplate.batch.readers.query": "QueryReader",
        "retrytemplate.batch.replay": "ReplayReport",
        "retrytemplate.batch.report": "Report StepFailedError",
        "retrytemplate.batch.run_status": "RunStatus Runs",
        "retrytemplate.batch.skip": "SkipPolicy",
        "retrytemplate.batch.step": "ChunkStep",
        "retrytemplate.batch.writers": "UpsertWriter",
        "retrytemplate.control.crash_loop": "CrashLoopError",
    },
)
