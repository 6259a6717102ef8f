"""One key for each operation, the same on every attempt; no retry of what has none."""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4, uuid5

from attrs import field, frozen

from retrytemplate._engine.context import current_context
from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.validation import checked_by, plain, text, text_or_none
from retrytemplate.control.events import CallRejected, check_listeners, listeners_of, tell
from retrytemplate.errors import IdempotencyRequiredError, MisuseError
from retrytemplate.guards import Guard
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext

__all__ = [
    "ATTRIBUTE",
    "HEADER",
    "Named",
    "RequireIdempotency",
    "derived",
    "idempotency_header",
    "idempotency_key",
]

HEADER = "Idempotency-Key"
ATTRIBUTE = "idempotency_key"
"""Of the context: where a key is kept, and may be set before anybody asks for it."""
ASKED = "idempotency_key_asked"
OURS = UUID("5f0c4dd0-5c1e-4d0b-9d0a-6f6a3f7f2b1e")

_monitor = Monitor()
_named: ContextVar[Named | None] = ContextVar("retrytemplate.operation", default=None)


def _new() -> str:
    return str(uuid4())


def idempotency_key(label: str | None = None, *, source: Callable[[], str] = _new) -> str:
    """The key of the operation in progress: the same on every attempt.

    It belongs to the nearest execution around the call that has a state key, or to the operation of
    an ``Operations`` store; else to the outermost execution.  A template with a name inside of that
    makes another key of the same operation, and so does a *label*.

    :param label: tells several effects of one operation apart.
    :param source: makes the key of an execution without a state key, once.
    :raises MisuseError: outside of every execution: each call would make another one.
    :raises ValueError: for a key that no header can carry.

    >>> from retrytemplate import RetryTemplate
    >>> keys = []
    >>> def charge():
    ...     keys.append(idempotency_key())
    ...     raise ConnectionError
    >>> RetryTemplate().outcome(charge).attempts, len(set(keys))
    (3, 1)
    """
    text_or_none("label", label)
    plain("source", source)
    named = _operation()
    inside = _inside(named)
    if inside and (named is None or _is_keyed(inside[-1])):
        key = _kept(inside.pop(), source)
    elif named is not None and named.key is not None:
        key = named.key
    else:
        raise MisuseError(
            "idempotency_key() needs an execution around it, or an operation: outside of both "
            "every call would make another key"
        )
    _mark()
    names = [each._owner.label for each in reversed(inside) if each._owner.label]
    return key if not names and label is None else derived(key, names, label)


def idempotency_header(
    label: str | None = None, *, source: Callable[[], str] = _new
) -> dict[str, str]:
    """The key as the header of a request.

    >>> from retrytemplate import RetryTemplate
    >>> RetryTemplate().call(lambda: idempotency_header(source=lambda: "k-17"))
    {'Idempotency-Key': 'k-17'}
    """
    return {HEADER: idempotency_key(label, source=source)}


def _mark() -> None:
    """Each execution around the call may go on: what it does has a key."""
    context = current_context()
    while context is not None:
        vars(context)[ASKED] = True
        context = context.parent


def derived(*parts: Any) -> str:
    """The key that these JSON values make, here and in every other process."""
    return str(uuid5(OURS, json.dumps(parts)))


class Named:
    """While it is entered, what is called belongs to the operation of this key."""

    __slots__ = ("around", "key", "outer")

    around: RetryContext | None
    outer: Named | None

    def __init__(self, key: str) -> None:
        self.key: str | None = key

    def __enter__(self) -> None:
        outer = _operation()
        if outer is not self:  # it may be entered within itself
            self.around, self.outer = current_context(), outer
        _named.set(self)

    def __exit__(self, *_: object) -> None:
        self.key = self.around = None
        # The collector may be closing a coroutine: then no context variable is to change, and what
        # says nothing any more may stay.
        if _named.get() is self and not isinstance(sys.exception(), GeneratorExit):
            _named.set(self.outer)


def _operation() -> Named | None:
    named = _named.get()
    while named is not None and named.key is None:
        named = named.outer
    return named


def _inside(named: Named | None) -> list[RetryContext]:
    """The executions around the call, innermost first, out to the one that is the operation."""
    end = None if named is None else named.around
    found, context = [], current_context()
    while context is not None and context is not end:
        found.append(context)
        if _is_keyed(context):
            break
        context = context.parent
    return found


def _is_keyed(context: RetryContext) -> bool:
    """Whether its state key names the operation; that of a circuit breaker names the circuit."""
    return context.key is not None and not context.keeps_context


def _kept(context: RetryContext, source: Callable[[], str]) -> str:
    """The key that the execution has by now."""
    key = _monitor.read(_found, context)
    if key is None:
        if _is_keyed(context):  # an attempt that died has left nothing but its state key
            made = derived(context._plan.scope, encode_key(context.key))
        else:
            made = source()
        key = _monitor.read(_keep, context, made)
    return _checked(key)


def _found(context: RetryContext) -> Any:
    return _shelf(context).get(ATTRIBUTE)


def _keep(context: RetryContext, made: str) -> Any:
    """In one step: it may interrupt itself."""
    shelf = _shelf(context)
    if shelf.setdefault(ATTRIBUTE, made) is None:
        shelf[ATTRIBUTE] = made
    return shelf[ATTRIBUTE]


def _shelf(context: RetryContext) -> Any:
    """Where it is kept; what a circuit breaker keeps belongs to all its calls."""
    return vars(context) if context.keeps_context else context.attributes


def _checked(key: Any) -> str:
    if not isinstance(key, str) or not key or not (key.isascii() and key.isprintable()):
        raise ValueError(f"{ATTRIBUTE} must be a text of printable ASCII, got {key!r}")
    return key


@frozen(eq=False)
class RequireIdempotency(Guard):
    """A guard for what must not be done twice: no retry unless the operation has a key.

    A call may be retried when ``idempotency_key()`` was asked for in it, or where it is declared to
    be idempotent.

    :param idempotent: whether a call without a key may be retried: a function of the context, or
        one answer for all.
    :param name: in errors and events.
    :param listeners: told of each refusal, with a ``CallRejected``.

    >>> from retrytemplate import RetryTemplate
    >>> template = RetryTemplate(guards=[RequireIdempotency()])
    >>> outcome = template.outcome(int, "seventeen")
    >>> outcome.attempts, type(outcome.exception).__name__
    (1, 'IdempotencyRequiredError')
    """

    idempotent: Any = field(default=False, kw_only=True)
    name: str = field(default="idempotency", kw_only=True, validator=checked_by(text))
    listeners: tuple[Any, ...] = field(
        default=(), kw_only=True, converter=listeners_of, validator=checked_by(check_listeners)
    )

    @idempotent.validator
    def _check_idempotent(self, _: Any, value: Any) -> None:
        if not isinstance(value, bool):
            plain("idempotent", value)

    def reserve(self, context: RetryContext, delay: float) -> None:
        """Whether the retry that follows may be made.

        :raises IdempotencyRequiredError: it might have its effect a second time.
        """
        if self._may_repeat(context):
            return
        error = IdempotencyRequiredError(
            f"{context.name or 'the call'} is not retried: without an idempotency key "
            "it might have its effect twice",
            name=self.name,
        )
        try:
            tell(self.listeners, [CallRejected(name=self.name, error=error)])
            raise error
        finally:
            del error  # its traceback holds this frame

    def _may_repeat(self, context: RetryContext) -> bool:
        if ASKED in vars(context) or _shelf(context).get(ATTRIBUTE) is not None:
            return True
        declared = self.idempotent
        return declared if isinstance(declared, bool) else bool(declared(context))
