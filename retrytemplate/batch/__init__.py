"""Chunk steps: a job that reads, processes and writes many items, and goes on where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._lazy import lazily

if TYPE_CHECKING:
    from retrytemplate.batch.errors import ReaderError, ReadError
    from retrytemplate.batch.readers.base import AsyncCursor, Cursor, Reader, Records
    from retrytemplate.batch.readers.csv import CsvReader
    from retrytemplate.batch.readers.iterables import ForwardReader, SequenceReader, as_reader

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.batch.errors": ("ReadError", "ReaderError"),
        "retrytemplate.batch.readers.base": ("AsyncCursor", "Cursor", "Reader", "Records"),
        "retrytemplate.batch.readers.csv": ("CsvReader",),
        "retrytemplate.batch.readers.iterables": ("ForwardReader", "SequenceReader", "as_reader"),
    },
)

__all__ = [
    "AsyncCursor",
    "CsvReader",
    "Cursor",
    "ForwardReader",
    "ReadError",
    "Reader",
    "ReaderError",
    "Records",
    "SequenceReader",
    "as_reader",
]
