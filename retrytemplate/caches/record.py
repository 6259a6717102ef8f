"""The record of a key: what a context cache keeps, as data, and its way to JSON and back."""

from __future__ import annotations

from itertools import dropwhile
from os import sep
from os.path import dirname, join
from traceback import FrameSummary, StackSummary, TracebackException
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.values import Value
from retrytemplate.errors import CacheUnavailableError, RecordedFailure
from retrytemplate.history import AttemptRecord, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FORMAT",
    "MARK",
    "Phase",
    "Record",
    "attempt_from_json",
    "brief",
    "describe",
    "from_json",
    "json_copy",
    "json_value",
    "shortened",
    "to_json",
    "to_text",
]

FORMAT = 1
# Of a message or a traceback, the mark included that says how much was cut.
TEXT_LIMIT = 8 * 1024
MARK = 40
# Files whose frames are the library's; the demo stands for a program of the user's.
PACKAGE = join(dirname(dirname(__file__)), "")
DEMO = join(PACKAGE, "demo", "")
# Between the library and a function of the caller, in asynchronous steps.
BRIDGES = (
    "/asyncio/threads.py",
    "/concurrent/futures/thread.py",
    "/sqlalchemy/ext/asyncio/engine.py",
    "/sqlalchemy/util/concurrency.py",
    "/sqlalchemy/util/_concurrency_py3k.py",
)
NO_TRACEBACK = "<no traceback: format_exception failed>"


@frozen(eq=False, repr=False)
class Record(Value):
    """A stored context: counts, text and JSON values; no live object.

    ``failures`` counts failed attempts, ``attempts`` those that began (of a shared record: in the
    execution that wrote it).  ``retry_allowed`` is the decision of the policy about the next
    attempt.  ``worker`` holds the key; None: the key is free.  ``fence`` only grows per key.
    ``not_before`` is the earliest time of the next attempt (seconds since the epoch).
    """

    phase: Phase = "idle"
    name: str | None = None
    failures: int = 0
    attempts: int = 0
    retry_allowed: bool = True
    no_recovery: bool = False
    gave_up: bool = False
    max_attempts: int | None = None
    last: RecordedFailure | None = None
    history: tuple[AttemptRecord, ...] = ()
    attributes: dict[str, Any] | None = None
    policy_state: Any = None
    backoff_state: Any = None
    backoff_started: bool = False
    not_before: float | None = None
    fingerprint: str = ""
    version: int = 1
    fence: int = 0
    worker: str | None = None


def json_copy(attributes: dict[str, Any] | None) -> dict[str, Any] | None:
    """Copy a context's attributes as JSON values.

    :raises TypeError: an attribute is not a JSON value, or its name is not a str; names it.
    """
    if not attributes:
        return None
    copy = {}
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise TypeError(f"attribute names of a stateful context must be str, got {name!r}")
        copy[name] = json_value(f"attribute {name!r} of a stateful context", value)
    return copy


def json_value(name: str, value: Any) -> Any:
    """Copy a value as JSON has it.

    :raises TypeError: the value is not a JSON value.
    """
    import json

    try:
        copy = json.loads(json.dumps(value, allow_nan=False))
        _check_keys(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(
            f"{name} must be a JSON value, every key a str, got {_shown(value)}"
        ) from exc
    return copy


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as exc:  # too deep, too many digits, or its own way to say it fails
        return f"one of type {type(value).__name__}: {summary(exc)}"


def _check_keys(value: Any) -> None:
    """Reject keys that JSON would silently turn into a str."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{key!r} would come back as a str")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def describe(exception: BaseException, redact: Callable[[str], str] | None) -> str:
    """The traceback as text, through *redact*; of more than 8 KiB the end.

    Without the frames at its top that belong to this library: they say nothing about the failure.
    """
    try:
        whole = TracebackException.from_exception(exception, compact=True)
        _drop_our_frames(whole)
        text = "".join(whole.format())
    except Exception:  # it asks for the truth, the cause and the class of each in the chain
        text = NO_TRACEBACK
    if redact is not None:
        text = redact(text)
    if len(text) <= TEXT_LIMIT:
        return text
    return f"{_cut(text, TEXT_LIMIT)}\n{text[MARK - TEXT_LIMIT :]}"


def _drop_our_frames(whole: TracebackException) -> None:
    """Remove the library's frames at the top of each traceback in the chain."""
    chain = [whole]
    while chain:
        each = chain.pop()
        frames = list(dropwhile(_is_above_the_callback, each.stack))
        # None: no heading above no frames.
        stack: Any = StackSummary.from_list(frames) if frames else None
        each.stack = stack
        parts = (each.__cause__, each.__context__, *(each.exceptions or ()))
        chain.extend(part for part in parts if part is not None)


def _is_above_the_callback(frame: FrameSummary) -> bool:
    """Whether it is the library's, or between the library and a function of the caller."""
    name = frame.filename
    is_ours = name.startswith(PACKAGE) and not name.startswith(DEMO)
    return is_ours or name.replace(sep, "/").endswith(BRIDGES)


def brief(message: str, redact: Callable[[str], str] | None) -> str:
    """The message, through *redact*; of more than 8 KiB the beginning."""
    if redact is not None:
        message = redact(message)
    return shortened(message, TEXT_LIMIT)


def shortened(text: str, limit: int) -> str:
    """The text; of one with more than *limit* characters the beginning, and how much was cut.

    >>> shortened("no price for " + 10 * "order-17 ", 60)
    'no price for order-1 [83 characters cut]'
    """
    if len(text) <= limit:
        return text
    return f"{text[: limit - MARK]} {_cut(text, limit)}"


def _cut(text: str, limit: int) -> str:
    return f"[{len(text) - limit + MARK} characters cut]"


def to_json(record: Record) -> dict[str, Any]:
    """The record as a JSON object."""
    data = asdict(record, recurse=False)
    data["format"] = FORMAT
    data["last"] = _failure_to_json(record.last)
    data["history"] = [asdict(attempt) for attempt in record.history]
    return data


def to_text(record: Record) -> str:
    """The record as JSON text, in ASCII: as many bytes as characters.

    :raises ValueError: a state is no JSON value (not a number, or infinite).
    :raises TypeError: a state is no JSON value.
    """
    import json

    return json.dumps(to_json(record), allow_nan=False, separators=(",", ":"))


def from_json(data: Any) -> Record:
    """The record that a JSON object holds.

    :raises CacheUnavailableError: it was written by a newer version, or is no record: then the
        error names the field.
    """
    try:
        return _record_from_json(data)
    except ValueError as exc:
        raise CacheUnavailableError(f"this is no record of a retry context: {exc}") from None


def _record_from_json(data: Any) -> Record:
    from retrytemplate.caches import record_schema as fields

    fields.check("it", data, fields.OBJECT)
    number = data.get("format")
    fields.check("format", number, fields.FORMAT_NUMBER)
    if number > FORMAT:
        raise CacheUnavailableError(
            f"the record has format {number}, this version reads up to {FORMAT}"
        )
    fields.check_all("", data, fields.RECORD, fields.OF_EVERY_RECORD)
    known = {name: value for name, value in data.items() if name != "format"}
    known["last"] = _failure_from_json("last", data["last"])
    known["history"] = tuple(
        attempt_from_json(f"history[{place}]", each) for place, each in enumerate(data["history"])
    )
    return Record(**known)


def _failure_to_json(failure: RecordedFailure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "type": failure.type_name,
        "message": failure.message,
        "cause": _failure_to_json(failure.cause),
    }


def _failure_from_json(place: str, data: dict[str, Any] | None) -> RecordedFailure | None:
    from retrytemplate.caches import record_schema as fields

    chain = []
    while data is not None:
        fields.check_all(f"{place}.", data, fields.FAILURE, fields.FAILURE)
        chain.append(data)
        place, data = f"{place}.cause", data["cause"]
    failure = None
    for each in reversed(chain):
        failure = RecordedFailure(each["type"], each["message"], failure)
    return failure


def attempt_from_json(place: str, data: Any) -> AttemptRecord:
    """The attempt that a JSON object holds.

    :param place: of the object, for messages.
    """
    from retrytemplate.caches import record_schema as fields

    fields.check(place, data, fields.OBJECT)
    fields.check_all(f"{place}.", data, fields.ATTEMPT, fields.OF_EVERY_ATTEMPT)
    return AttemptRecord(**data)
