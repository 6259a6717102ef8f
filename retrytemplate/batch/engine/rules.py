"""The settings that a step decides by, and its dead letters."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.batch.journal.letters import Letter, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retrytemplate.batch.codec import Codec
    from retrytemplate.batch.engine.chunk import Chunk
    from retrytemplate.batch.engine.fault_search import FaultSearchMode
    from retrytemplate.batch.outbox import Outbox
    from retrytemplate.batch.skip import SkipPolicy
    from retrytemplate.errors import RecordedFailure
    from retrytemplate.history import AttemptRecord


@frozen
class Rules:
    """The settings that decide the course of a step."""

    chunk_size: int
    skip: SkipPolicy
    max_crashes: int
    fault_search: FaultSearchMode
    key: Callable[[Any], Any] | None
    codec: Codec
    stores_payloads: bool
    """Whether a chunk's items are kept with its checkpoint: the reader cannot give them again."""
    uses_processor: bool = True
    """Whether items are processed before the transaction begins, each once."""
    outbox: Outbox | None = None
    after_commit: bool = False
    has_listeners: bool = False
    savepoints: bool = True
    """Whether the parts of a search may share a transaction."""
    may_wait: bool = False
    """Whether the attempts at one item may wait, which no open transaction does."""


def make_letter(
    rules: Rules,
    chunk: Chunk,
    index: int,
    phase: str,
    failure: RecordedFailure,
    attempts: Sequence[AttemptRecord],
) -> Letter:
    """The dead letter of an item.

    :param phase: "read", "process", "write" or "crash".
    :param attempts: the last ones, after those in the chunk's histories.
    """
    records = chunk.read.records
    item, number = records.items[index], records.first + index
    payload, replayable = _encode_payload(rules.codec, item)
    key = f"{records.source}:{number}"
    if phase == "read":
        payload, replayable = str(item), False
    elif rules.key is not None:
        with suppress(Exception):  # the item may be at fault: its place identifies it
            key = str(rules.key(item))
    return Letter(
        source=records.source,
        number=number,
        key=key,
        phase=phase,
        payload=payload,
        replayable=replayable,
        error_type=failure.type_name,
        error_message=failure.message,
        attempts=joined(chunk.histories.get(index, ()), attempts),
    )


def _encode_payload(codec: Codec, item: Any) -> tuple[str, bool]:
    try:
        text: Any = codec.encode(item)
        if isinstance(text, str):
            return text, True
        raise TypeError("encode() of a codec must return a string")
    except Exception:  # whatever it is, the letter is written
        try:
            return repr(item), False
        except Exception:
            return f"<no text: repr() of {type(item).__name__} failed>", False
