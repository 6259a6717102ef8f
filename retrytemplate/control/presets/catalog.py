"""Settings by name: looked up, shared, changed field by field."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from retrytemplate._internal.suggestions import did_you_mean
from retrytemplate._internal.validation import check_flag, check_text
from retrytemplate.control.classification.failure_kind import TRANSIENT_ERRORS
from retrytemplate.control.classification.libraries import (
    MODEL_ERRORS,
    POSTGRESQL_ERRORS,
    REDIS_ERRORS,
    STREAM_ERRORS,
)
from retrytemplate.control.presets.preset import BY_REQUEST, Preset
from retrytemplate.control.presets.strict import check
from retrytemplate.control.timeout.stream import StreamTimeout
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T", bound="RetryTemplate | BoundTemplate | Preset")


def strict(template: T) -> T:
    """The template or preset, if it has what a retry needs in production.

    That is: a limit, growing waits with jitter, a declaration whether a call may be made
    twice, a budget, and a list of retryable errors.  A template that never retries needs
    nothing.  A preset is returned as a strict one: its ``with_`` checks likewise.

    :param template: a ``RetryTemplate``, one that is bound to settings, or a ``Preset``.
    :raises UnsafeRetryError: something is missing; its ``missing`` has all of it.

    >>> from retrytemplate import ExponentialBackoff, RetryTemplate, SimpleRetryPolicy
    >>> from retrytemplate.control import RequireIdempotency
    >>> template = RetryTemplate(
    ...     SimpleRetryPolicy(3, OSError),
    ...     ExponentialBackoff(jitter="full"),
    ...     guards=[RequireIdempotency()],
    ... )
    >>> strict(template)
    Traceback (most recent call last):
    retrytemplate.errors.UnsafeRetryError: RetryTemplate is missing a budget (RetryBudget)
    """
    if isinstance(template, Preset):
        return template.with_(strict=True)
    if not isinstance(template, RetryTemplate | BoundTemplate):
        raise TypeError(f"strict() takes a template or a preset, got {template!r}")
    check(template.template, template)
    return template


_known: dict[str, Preset] = {}
PRESETS: Mapping[str, Preset] = MappingProxyType(_known)
"""All that are registered, by their names, in small letters and with hyphens; it cannot be changed
but by ``register``."""


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def preset(name: str) -> Preset:
    """The preset of this name, one that is shipped or one that was registered.

    :param name: in any spelling: ``"fast-io"``, ``"FAST_IO"``.
    :raises LookupError: the name is unknown; the message lists the known ones.
    :raises TypeError: the name is not a str, or is empty.

    >>> preset("fast-io") is FAST_IO
    True
    """
    check_text("name", name)
    try:
        return _known[_key(name)]
    except KeyError:
        raise LookupError(
            f"there is no preset {name!r}; there are {', '.join(map(repr, sorted(_known)))}"
            f"{did_you_mean(_key(name), _known)}"
        ) from None


def register(made: Preset, *, replace: bool = False) -> Preset:
    """Register a preset by its name in this process, and return it; repeatable.

    :param made: the preset; templates that were made of another one of its name stay as they are.
    :param replace: whether it replaces a preset of the same name; default False.
    :raises ValueError: the name is taken by another one.
    :raises TypeError: not a preset, or ``replace`` is neither True nor False.

    >>> search = register(FAST_IO.with_(name="search", max_attempts=2))
    >>> preset("search") is search
    True
    """
    if not isinstance(made, Preset):
        raise TypeError(f"register() takes a Preset, got {made!r}")
    check_flag("replace", replace)
    key = _key(made.name)
    if replace:
        _known[key] = made
        return made
    known = _known.setdefault(key, made)
    if known != made:
        raise ValueError(f"preset {made.name!r} already exists; use register(..., replace=True)")
    return known


FAST_IO = register(Preset("fast-io"))
"""Calls that normally return within two seconds: three attempts."""
SLOW_IO = register(
    FAST_IO.with_(
        name="slow-io",
        max_attempts=5,
        attempt_timeout=30.0,
        initial=1.0,
        maximum=30.0,
        jitter="full",
        give_up_above=120.0,
    )
)
"""What takes its time: reports, uploads, other people's batch systems.  Five attempts of half a
minute."""
STRICT = register(
    Preset(
        "strict",
        TRANSIENT_ERRORS,
        max_attempts=5,
        attempt_timeout=10.0,
        maximum=30.0,
        jitter="full",
        give_up_above=60.0,
        idempotent=False,
        budget=True,
        strict=True,
    )
)
"""Whatever is made of it has all that production needs, or is not made."""
HTTPX = register(STRICT.with_(name="httpx", max_attempts=4, idempotent=BY_REQUEST, strict=False))
"""Requests with httpx or httpx2; again only where the method, or a key, says that it may be."""
REQUESTS = register(HTTPX.with_(name="requests"))
"""Requests with requests, likewise."""
AIOHTTP = register(HTTPX.with_(name="aiohttp"))
"""Requests with aiohttp, likewise."""
# Without an attempt_timeout, here and below: an asynchronous attempt that is cancelled after its
# effect would be made again.  Databases and clients have limits of their own.
POSTGRESQL = register(
    Preset(
        "postgresql",
        POSTGRESQL_ERRORS,
        max_attempts=4,
        attempt_timeout=None,
        initial=0.1,
        maximum=5.0,
        jitter="equal",
        give_up_above=5.0,
        budget=True,
    )
)
"""Transactions with SQLAlchemy, psycopg or asyncpg, repeated as a whole."""
REDIS = register(
    Preset(
        "redis",
        REDIS_ERRORS,
        max_attempts=4,
        attempt_timeout=None,
        initial=0.05,
        jitter="full",
        budget=True,
    )
)
"""Commands with redis-py or valkey-py, whose own retries are to be switched off."""
OPENAI = register(
    Preset(
        "openai",
        MODEL_ERRORS,
        max_attempts=4,
        attempt_timeout=None,
        initial=1.0,
        maximum=30.0,
        jitter="equal",
        give_up_above=60.0,
        idempotent=True,
        budget=True,
        stream=StreamTimeout(),
    )
)
"""Models called with the SDK of OpenAI, or one that is made like it, whose own retries are to be
switched off."""
STREAMING = register(OPENAI.with_(name="streaming", retry_on=STREAM_ERRORS, max_attempts=3))
"""Streams, restarted until their first item; ``STREAMING.over(...)`` limits each item."""
