"""State of stateful executions: the key that their context is kept under."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.validation import check_limit_or_none, to_seconds
from retrytemplate._internal.values import Value
from retrytemplate.errors import InconsistentKeyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

__all__ = ["RetryState", "encode_key", "scope_of"]

KEY_TYPES = "a str, int, bytes, or a tuple of those"


def encode_key(key: Any, what: str = "the key of a stateful retry") -> str:
    """A key as a string with its type: ``1``, ``"1"`` and ``True`` differ.

    :param what: begins the error message.
    :raises InconsistentKeyError: if the key has no stable encoding.

    >>> encode_key("order-17"), encode_key(17), encode_key(("eu", 17))
    ('s:order-17', 'i:17', 't:s:eu,i:17')
    """
    if isinstance(key, str):
        return "s:" + key
    if isinstance(key, bool):
        return f"b:{int(key)}"
    if isinstance(key, int):
        try:
            return f"i:{int(key)}"
        except ValueError as exc:
            raise InconsistentKeyError(f"{what} is too large an int") from exc
    if isinstance(key, bytes):
        return "x:" + key.hex()
    if isinstance(key, tuple):
        return "t:" + ",".join(_escaped(encode_key(part, what)) for part in key)
    raise InconsistentKeyError(f"{what} must be {KEY_TYPES}, got {key!r}")


def scope_of(name: str | None) -> str:
    """The prefix of a name's keys in a shared cache.

    >>> scope_of("charge"), scope_of("eu/charge"), scope_of(None)
    ('charge/', 'eu%2Fcharge/', '/')
    """
    return (name or "").replace("%", "%25").replace("/", "%2F") + "/"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C")


def _rollback_function(value: Any) -> Callable[[BaseException], bool]:
    """A classifier, a function or a type (or tuple of types) as a function of the exception."""
    classify = getattr(value, "classify", None)
    if classify is not None:
        return classify  # type: ignore[no-any-return]  # a classifier's own method
    kinds = value if isinstance(value, tuple) else (value,)
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return partial(_is_one_of, kinds)  # unlike a closure it can be pickled
    if callable(value) and not isinstance(value, type) and not is_async(value):
        return value  # type: ignore[no-any-return]  # a function, as was seen
    raise TypeError(
        "rollback_for must be an ExceptionClassifier, an exception type (or tuple of them), "
        f"a function of the exception, or None, got {value!r}"
    )


def _is_one_of(kinds: tuple[type[BaseException], ...], exception: BaseException) -> bool:
    return isinstance(exception, kinds)


@frozen(init=False, eq=False, repr=False, slots=False)
class RetryState(Value):
    """Makes an execution stateful: its context is kept under a key.

    :param key: identifies the work that may be redelivered: a str, int, bytes or tuple of those.
    :param force_refresh: whether to discard the context kept under the key; default False.
    :param rollback_for: which failures are re-raised at once: a classifier, an exception type (or a
        tuple of them), or a function of the exception.  The others are retried inside the call.
        Default None: every failure is re-raised.
    :param defer_backoff: when to wait.  None (the default) waits before the failure is re-raised.
        "wait" re-raises at once, and an early redelivery waits for the remaining delay.  "raise"
        re-raises at once, and an early redelivery raises ``RetryLater``.
    :param remember: seconds (or a ``timedelta``) that the completion marker of a success is kept,
        at least 0; a redelivery then raises ``AlreadyCompletedError``.  Default None: no marker.
        It has no effect with a policy that keeps its context (a circuit breaker).  A recovery
        leaves no marker: a dead-lettered key that is redelivered starts with its first attempt.
    :param exclusive: how attempts of the key run that may crash their process.  True: alone; the
        claim is marked, and ``AttemptLostError.exclusive`` is True if the attempt is lost.  False:
        beside others; a key with a lost attempt raises ``ExclusiveRequiredError``, uncounted.
        Default None: neither.  The caller keeps other attempts away; the template does not.
    :raises InconsistentKeyError: if ``key`` is not a str, int, bytes or tuple of those.
    :raises TypeError: if ``force_refresh`` or ``exclusive`` is no bool.
    :raises ValueError: if ``defer_backoff`` is another value, or ``remember`` below 0.

    >>> from retrytemplate import RetryTemplate
    >>> template, state = RetryTemplate(), RetryState(("order", 17))
    >>> failing = template.bind(state=state).outcome(int, "seventeen")
    >>> failing.attempts, template.execute(lambda context: context.attempt, state=state)
    (1, 2)

    Source: ``org.springframework.retry.support.DefaultRetryState``.
    """

    key: Any
    force_refresh: bool = False
    rollback_for: Any = None
    defer_backoff: Literal["wait", "raise"] | None = None
    remember: float | None = None
    exclusive: bool | None = None
    tracked: bool = field(default=True, kw_only=True, init=False)
    encoded: str = field(default="", init=False, repr=False, eq=False)
    rolls_back: Callable[[BaseException], bool] | None = field(default=None, init=False, eq=False)

    # Not generated by attrs: that takes four times as long, and most deliveries create a state.
    def __init__(
        self,
        key: Any,
        force_refresh: bool = False,
        rollback_for: Any = None,
        defer_backoff: Literal["wait", "raise"] | None = None,
        remember: float | timedelta | None = None,
        exclusive: bool | None = None,
        *,
        tracked: bool = True,
    ) -> None:
        encoded = "s:" + key if type(key) is str else encode_key(key) if tracked else ""
        if force_refresh is not False and not isinstance(force_refresh, bool):
            raise TypeError(f"force_refresh must be True or False, got {force_refresh!r}")
        if defer_backoff is not None and defer_backoff not in ("wait", "raise"):
            raise ValueError(
                f"defer_backoff must be None, 'wait' or 'raise', got {defer_backoff!r}"
            )
        if remember is not None:
            remember = to_seconds(remember)
            check_limit_or_none("remember", remember)
        if exclusive is not None and not isinstance(exclusive, bool):
            raise TypeError(f"exclusive must be True, False or None, got {exclusive!r}")
        fields = self.__dict__
        fields["key"] = key
        fields["force_refresh"] = force_refresh
        fields["rollback_for"] = rollback_for
        fields["defer_backoff"] = defer_backoff
        fields["remember"] = remember
        fields["exclusive"] = exclusive
        fields["tracked"] = tracked
        fields["encoded"] = encoded
        fields["rolls_back"] = None if rollback_for is None else _rollback_function(rollback_for)

    @classmethod
    def untracked(cls, force_refresh: bool = False, rollback_for: Any = None) -> RetryState:
        """A state without a key: no context is kept, each delivery is the first one.

        :param force_refresh: as for the class.
        :param rollback_for: as for the class.
        """
        return cls(None, force_refresh, rollback_for, tracked=False)
