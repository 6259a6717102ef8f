"""One key for each operation, the same on every attempt; no retry without a key."""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4, uuid5

from attrs import field, frozen

from retrytemplate._engine.context import current_context
from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.validation import (
    check_function,
    check_text,
    check_text_or_none,
    checked_by,
)
from retrytemplate.control._fields import HasListeners
from retrytemplate.control.events import reject
from retrytemplate.errors import IdempotencyRequiredError, MisuseError
from retrytemplate.guards import Guard
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext

HEADER = "Idempotency-Key"
ATTRIBUTE = "idempotency_key"
"""Of the context: where a key is kept, and may be set before anybody asks for it."""
KEY_REQUESTED = "idempotency_key_requested"
KEY_NAMESPACE = UUID("5f0c4dd0-5c1e-4d0b-9d0a-6f6a3f7f2b1e")

_monitor = Monitor()
_current_scope: ContextVar[OperationScope | None] = ContextVar(
    "retrytemplate.operation", default=None
)


def _new() -> str:
    return str(uuid4())


def idempotency_key(label: str | None = None, *, source: Callable[[], str] = _new) -> str:
    """The key of the operation in progress: the same on every attempt.

    It belongs to the nearest enclosing execution that has a state key, or to the operation of
    an ``Operations`` store; else to the outermost execution.  A template with a name inside of that
    makes another key of the same operation, and so does a *label*.

    :param label: distinguishes several effects of one operation.
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
    check_text_or_none("label", label)
    check_function("source", source)
    scope = _operation()
    enclosing = _enclosing_executions(scope)
    if enclosing and (scope is None or _is_keyed(enclosing[-1])):
        key = _get_or_create_key(enclosing.pop(), source)
    elif scope is not None and scope.key is not None:
        key = scope.key
    else:
        raise MisuseError(
            "idempotency_key() needs an execution around it, or an operation: outside of both "
            "every call would make another key"
        )
    _mark_key_requested()
    names = [each._owner.label for each in reversed(enclosing) if each._owner.label]
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


def _mark_key_requested() -> None:
    """Mark the enclosing executions as retryable: their effects have a key."""
    context = current_context()
    while context is not None:
        vars(context)[KEY_REQUESTED] = True
        context = context.parent


def derived(*parts: Any) -> str:
    """The key that these JSON values make, here and in every other process."""
    return str(uuid5(KEY_NAMESPACE, json.dumps(parts)))


class OperationScope:
    """While entered, calls belong to the operation of this key."""

    __slots__ = ("enclosing_context", "key", "outer")

    enclosing_context: RetryContext | None
    outer: OperationScope | None

    def __init__(self, key: str) -> None:
        self.key: str | None = key

    def __enter__(self) -> None:
        outer = _operation()
        if outer is not self:  # it may be entered within itself
            self.enclosing_context, self.outer = current_context(), outer
        _current_scope.set(self)

    def __exit__(self, *_: object) -> None:
        self.key = self.enclosing_context = None
        # The collector may be closing a coroutine: then no context variable is to change, and what
        # says nothing any more may stay.
        if _current_scope.get() is self and not isinstance(sys.exception(), GeneratorExit):
            _current_scope.set(self.outer)


def _operation() -> OperationScope | None:
    scope = _current_scope.get()
    while scope is not None and scope.key is None:
        scope = scope.outer
    return scope


def _enclosing_executions(scope: OperationScope | None) -> list[RetryContext]:
    """The enclosing executions, innermost first, out to the one that is the operation."""
    end = None if scope is None else scope.enclosing_context
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


def _get_or_create_key(context: RetryContext, source: Callable[[], str]) -> str:
    """The key of the execution; a missing one is created and stored."""
    key = _monitor.read(_stored_key, context)
    if key is None:
        if _is_keyed(context):  # a crashed attempt has left nothing but its state key
            made = derived(context._plan.scope, encode_key(context.key))
        else:
            made = source()
        key = _monitor.read(_store_key, context, made)
    return _checked(key)


def _stored_key(context: RetryContext) -> Any:
    return _attribute_store(context).get(ATTRIBUTE)


def _store_key(context: RetryContext, made: str) -> Any:
    """In one step: it may interrupt itself."""
    store = _attribute_store(context)
    if store.setdefault(ATTRIBUTE, made) is None:
        store[ATTRIBUTE] = made
    return store[ATTRIBUTE]


def _attribute_store(context: RetryContext) -> Any:
    """Where it is kept; what a circuit breaker keeps belongs to all its calls."""
    return vars(context) if context.keeps_context else context.attributes


def _checked(key: Any) -> str:
    if not isinstance(key, str) or not key or not (key.isascii() and key.isprintable()):
        raise ValueError(f"{ATTRIBUTE} must be a string of printable ASCII characters, got {key!r}")
    return key


@frozen(eq=False)
class RequireIdempotency(HasListeners, Guard):
    """A guard for what must not be done twice: no retry unless the operation has a key.

    A call may be retried when ``idempotency_key()`` was called in it, or where it is declared to
    be idempotent.

    :param idempotent: whether a call without a key may be retried: a function of the context, or
        one answer for all.
    :param name: in errors and events.
    :param listeners: receive a ``CallRejected`` for each rejection.

    >>> from retrytemplate import RetryTemplate
    >>> template = RetryTemplate(guards=[RequireIdempotency()])
    >>> outcome = template.outcome(int, "seventeen")
    >>> outcome.attempts, type(outcome.exception).__name__
    (1, 'IdempotencyRequiredError')
    """

    idempotent: Any = field(default=False, kw_only=True)
    name: str = field(default="idempotency", kw_only=True, validator=checked_by(check_text))

    @idempotent.validator
    def _check_idempotent(self, _: Any, value: Any) -> None:
        if not isinstance(value, bool):
            check_function("idempotent", value)

    def reserve(self, context: RetryContext, delay: float) -> None:
        """Reject the retry of a call that is not idempotent.

        :raises IdempotencyRequiredError: it might have its effect a second time.
        """
        if self._may_repeat(context):
            return
        message = (
            f"{context.name or 'the call'} is not retried: without an idempotency key "
            "it might have its effect twice"
        )
        reject(self.listeners, IdempotencyRequiredError(message, name=self.name))

    def _may_repeat(self, context: RetryContext) -> bool:
        if KEY_REQUESTED in vars(context) or _attribute_store(context).get(ATTRIBUTE) is not None:
            return True
        declared = self.idempotent
        return declared if isinstance(declared, bool) else bool(declared(context))
