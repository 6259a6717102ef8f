"""Which items may be given up, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._internal.validation import check_at_least, check_int, checked_by
from retrytemplate._internal.values import Value
from retrytemplate.errors import MisuseError
from retrytemplate.policies.simple import (
    SimpleRetryPolicy,
    check_retryable,
    types_or_predicate,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _rate(name: str, value: Any) -> None:
    allowed = "a share between 0 and 1, or None"
    if value is not None:
        check_at_least(name, value, 0, allowed=allowed)
        if value > 1:
            raise ValueError(f"{name} must be {allowed}, got {value!r}")


@frozen(eq=False, repr=False)
class SkipPolicy(Value):
    """Selects the failures that dead-letter an item instead of ending the run.

    :param on: an exception class, a tuple of them, or a predicate of the exception.
    :param limit: skipped items of a run at most, over all its restarts; None: any number.
    :param rate: this share of the items read at most, between 0 and 1; None: any.
    :param after: items that must have been read before the rate counts.
    :param not_on: classes that are not skipped.  Of a class and its base the one nearer to the
        exception decides.

    It does not apply to items that crashed their process: ``ChunkStep(max_crashes=...)`` limits
    those, and they do not count here.

    >>> policy = SkipPolicy(on=(ValueError,), limit=2)
    >>> policy.covers(ValueError("no number")), policy.covers(OSError("no disk"))
    (True, False)
    >>> policy.has_room(skipped=1, read=10), policy.has_room(skipped=2, read=10)
    (True, False)

    Source: ``LimitCheckingExceptionHierarchySkipPolicy`` of Spring Batch.
    """

    on: Any = ()
    limit: int | None = field(default=None, validator=optional(checked_by(check_int, 0)))
    rate: float | None = field(default=None, validator=checked_by(_rate))
    after: int = field(default=0, validator=checked_by(check_int, 0))
    not_on: Any = ()
    _covers: Callable[[BaseException], bool] = field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        check_retryable("on", types_or_predicate(self.on))
        # The same rules as for retryable exceptions: the nearest class decides.
        rules = SimpleRetryPolicy(2, retry_on=self.on, not_on=self.not_on)
        object.__setattr__(self, "_covers", lambda failure: rules.allows(1, failure))

    def covers(self, failure: BaseException) -> bool:
        """Whether an item that failed so may be given up: never for a fault in the program."""
        return bool(self.on) and not isinstance(failure, MisuseError) and self._covers(failure)

    def has_room(self, *, skipped: int, read: int) -> bool:
        """Whether one more item may be skipped, given these counts."""
        if self.limit is not None and skipped >= self.limit:
            return False
        if self.rate is not None and read >= self.after:
            # A quotient is rounded as the rate was when it was written down; a product is not.
            return read > 0 and (skipped + 1) / read <= self.rate
        return True
