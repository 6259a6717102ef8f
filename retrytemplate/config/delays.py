"""The delays before the retries of an endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.control.pipeline.probe import sample_delays

if TYPE_CHECKING:
    from retrytemplate.control.presets.preset import Preset

MOST = 50


@frozen
class Delay:
    """The delay before a retry, in seconds.

    :param retry: number of the retry, from 1.
    :param raw: ``initial * multiplier ** (retry - 1)``.
    :param capped: the same, at most ``maximum``.
    :param shortest: lower end of the range of the jitter; ``longest``: its upper end.
    """

    retry: int
    raw: float
    capped: float
    shortest: float
    longest: float


def preset_delays(preset: Preset) -> tuple[Delay, ...]:
    """The delays if every attempt fails and no server requests a delay; at most 50.

    >>> from retrytemplate.control import FAST_IO
    >>> first, second = preset_delays(FAST_IO)
    >>> second.raw, second.shortest, second.longest
    (0.4, 0.4, 0.5)
    """
    count = min(preset.max_attempts - 1, MOST)
    if count < 1:
        return ()
    backoff = preset.template().backoff
    if isinstance(backoff, RetryAfterBackoff):
        backoff = backoff.fallback
    ranges = zip(sample_delays(backoff, 0, count), sample_delays(backoff, 1, count), strict=True)
    found, raw = list[Delay](), preset.initial
    for number, each in enumerate(ranges, start=1):
        found.append(Delay(number, raw, min(raw, preset.maximum), *map(_rounded, each)))
        raw = _rounded(raw * preset.multiplier)
    return tuple(found)


def _rounded(seconds: float) -> float:
    """Without the error of the largest random number below 1."""
    return float(f"{seconds:.12g}")
