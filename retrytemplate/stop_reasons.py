"""Why an execution made no further attempt: the words, defined once."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["STOP_REASONS", "WORDS", "StopReason"]

StopReason = Literal[
    "not_retryable",
    "attempts_exhausted",
    "time_limit",
    "deadline",
    "budget_exhausted",
    "guard",
    "rejected",
    "gave_up",
    "recovery_failed",
    "terminated",
]
"""Why an execution made no further attempt: what ``RetryContext.stop_reason`` holds."""

STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)
WORDS: dict[StopReason, str] = {each: each.replace("_", " ") for each in STOP_REASONS}
