"""Which keys are back already: the same ones in every process, and more of them at each step."""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.validation import check_at_least
from retrytemplate.errors import MisuseError, SwitchRefusedError
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.control.switch.model import SwitchScope

LOG = logging.getLogger("retrytemplate.control.switch")
ALL_KEYS = 100.0
KEY_SUBJECT = "the key of a check"
HASH_PERSON = b"rt canary 1"  # another number: other keys


def rollout_position(scope: SwitchScope, key: Any) -> float:
    """The position of a key in the rollout of its scope: at least 0, below 100.

    It is in where that is below the share; so those of a small share are part of a larger one.  The
    scope is part of it: in another one others are the first.

    :raises InconsistentKeyError: the key is not valid.

    >>> from retrytemplate.control.switch.model import SwitchScope
    >>> rollout_position(SwitchScope("segment", "finance"), "user-17") < 100
    True
    """
    parts = scope.kind, scope.name or "", encode_key(key, KEY_SUBJECT)
    text = "/".join(f"{len(part)}:{part}" for part in parts)
    digest = blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=8, person=HASH_PERSON
    ).digest()
    return (int.from_bytes(digest) >> 11) * (ALL_KEYS / 2**53)


def parse_canary(canary: Any) -> tuple[float, ...]:
    """The steps of a canary, in per cent; none: all at once.

    :raises SwitchRefusedError: they do not grow up to 100.

    >>> parse_canary((5, 25, 100))
    (5.0, 25.0, 100.0)
    """
    if canary is None:
        return ()
    if not isinstance(canary, list | tuple) or not canary:
        raise TypeError(f"canary must be a sequence of shares in per cent, or None, got {canary!r}")
    for share in canary:
        check_at_least("canary: each", share, 0, allowed="a number above 0, up to 100")
    if not is_canary(canary):
        raise SwitchRefusedError(
            f"canary must grow from above 0 to 100 per cent, as (5, 25, 100) does, got {canary!r}"
        )
    return tuple(map(float, canary))


def is_canary(shares: Sequence[float]) -> bool:
    """Whether these shares grow from above 0 to all.

    >>> is_canary([5, 25, 100]), is_canary([25, 5, 100]), is_canary([5, 25]), is_canary([])
    (True, False, False, False)
    """
    pairs = zip((0, *shares), shares, strict=False)
    return max(shares, default=0) == ALL_KEYS and all(before < after for before, after in pairs)


def evaluate_health(healthy: Any, justification: str) -> tuple[bool, str]:
    """Whether the next step may be taken, and the text for the record.

    :param healthy: a bool, a function that looks, or None: the justification says so.
    :raises MisuseError: the function returned an awaitable.
    """
    why = f"not healthy: {justification}"
    if callable(healthy):
        try:
            answer = healthy()
        except Exception as exc:
            LOG.warning(
                "the health check %r raised an exception: unhealthy", healthy, exc_info=True
            )
            return False, f"not healthy, {summary(exc)}"
        if is_awaitable(answer):
            close_unawaited(answer)
            raise MisuseError(f"{healthy!r} returned an awaitable; healthy must be synchronous")
        healthy = bool(answer)
    return (False, why) if healthy is False else (True, justification)
