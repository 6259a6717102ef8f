"""Circuit breakers as one types them, and the calls that they are tried on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import fields

from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.csv import CsvReader
from retrytemplate.batch.readers.json_lines import JsonLinesReader
from retrytemplate.cli.spec import NUMBER, SECONDS, WHOLE, Kind, made
from retrytemplate.cli.usage import WorkError
from retrytemplate.control.breaker import CircuitBreaker
from retrytemplate.control.tuning import RecordedCall
from retrytemplate.control.windows import Calls, Consecutive, Seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["BREAKERS", "breaker", "recording"]

AT_ONCE = 1000
FIELDS = tuple(each.name for each in fields(RecordedCall))

RATES = {"minimum_calls": WHOLE, "failure_rate": NUMBER, "slow_rate": NUMBER}
OTHERS = {
    "slow_call": SECONDS,
    "reset_timeout": SECONDS,
    "reset_jitter": NUMBER,
    "reset_growth": NUMBER,
    "reset_maximum": SECONDS,
    "half_open_calls": WHOLE,
    "required_successes": WHOLE,
}


def _breaker(window: Callable[[Any], Any], size: str, **settings: Any) -> CircuitBreaker:
    return CircuitBreaker("replay", window=window(settings.pop(size)), **settings)


BREAKERS = {
    "calls": Kind(
        partial(_breaker, Calls, "number"), {"number": WHOLE} | RATES | OTHERS, ("number",)
    ),
    "seconds": Kind(
        partial(_breaker, Seconds, "seconds"), {"seconds": SECONDS} | RATES | OTHERS, ("seconds",)
    ),
    "consecutive": Kind(
        partial(_breaker, Consecutive, "number"), {"number": WHOLE} | OTHERS, ("number",)
    ),
}


def breaker(text: str) -> CircuitBreaker:
    """The breaker that the text describes.

    :raises UsageError: with what is allowed.

    >>> breaker("calls:20,failure_rate=0.5").failure_rate
    0.5
    """
    found: CircuitBreaker = made("breaker", text, BREAKERS)
    return found


def recording(path: Path) -> Iterator[RecordedCall]:
    """The calls in a file: CSV where it is called so, else JSON lines.

    :raises WorkError: it cannot be read.
    """
    reader = CsvReader(path) if path.suffix.lower() == ".csv" else JsonLinesReader(path)
    try:
        with reader.open() as cursor:
            while records := cursor.read(AT_ONCE):
                for error in records.broken.values():
                    raise WorkError(str(error))
                for index, item in enumerate(records.items):
                    yield _call(item, f"{path}, record {records.number(index)}")
    except (OSError, ReaderError) as error:
        raise WorkError(str(error)) from error


def _call(item: Any, where: str) -> RecordedCall:
    if not isinstance(item, dict) or not item.keys() >= set(FIELDS):
        raise WorkError(f"{where} must have {', '.join(FIELDS)}, got {item!r}")
    try:
        time, duration = float(item["time"]), float(item["duration"])
        return RecordedCall(time, duration, item["outcome"])
    except (TypeError, ValueError, OverflowError) as error:
        raise WorkError(f"{where}: {error}") from error
