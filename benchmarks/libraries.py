"""The same task in each library: three attempts, no wait, the same exception, nothing logged.

The others are imported by name: the checkers run where they are not installed.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attrs import frozen
from cells import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    # Wraps a function with retry.
    Forms = dict[str, Callable[[Callable[..., Any]], Callable[[], Any]]]


def loop() -> Forms:
    """What one would write by hand."""

    def sync(fn: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(3):
                try:
                    return fn(*args, **kwargs)
                except Failure:
                    if attempt == 2:
                        raise

        return guarded

    def asynchronous(fn: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(3):
                try:
                    return await fn(*args, **kwargs)
                except Failure:
                    if attempt == 2:
                        raise

        return guarded

    def block(fn: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            for attempt in range(3):
                try:
                    return fn()
                except Failure:
                    if attempt == 2:
                        raise

        return run

    return {
        "sync": sync,
        "async": asynchronous,
        "call": sync,
        "block": block,
        "listener": sync,
        "stateful": sync,
    }


def ours() -> Forms:
    """Retrytemplate, the policy named as one would."""
    from retrytemplate import RetryListener, RetryState, RetryTemplate, SimpleRetryPolicy
    from retrytemplate.listeners.base import HOOKS

    def nothing(self: object, *arguments: object) -> None:
        """A hook that is overridden, and so is called."""

    policy = SimpleRetryPolicy(max_attempts=3, retry_on=Failure)
    template = RetryTemplate(policy)
    listener = type("Silent", (RetryListener,), dict.fromkeys(HOOKS, nothing))()
    listening = RetryTemplate(policy, listeners=[listener])
    state = RetryState("key")

    def block(fn: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            for attempt in template.attempts():
                with attempt:
                    return fn()
            return None

        return run

    return {
        "sync": template.wrap,
        "async": template.wrap,
        "call": lambda fn: partial(template.call, fn),
        "block": block,
        "listener": listening.wrap,
        "stateful": lambda fn: partial(template.execute, fn, state=state),
    }


def tenacity() -> Forms:
    """Its hooks and statistics have no counterpart of a listener or a state."""
    library = import_module("tenacity")
    settings = {
        "stop": library.stop_after_attempt(3),
        "wait": library.wait_none(),
        "retry": library.retry_if_exception_type(Failure),
        "reraise": True,
    }
    retrying = library.Retrying(**settings)

    def block(fn: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            for attempt in library.Retrying(**settings):
                with attempt:
                    return fn()
            return None

        return run

    return {
        "sync": library.retry(**settings),
        "async": library.retry(**settings),
        "call": lambda fn: partial(retrying, fn),
        "block": block,
    }


def stamina() -> Forms:
    """Without its hooks: by default it logs every retry."""
    library = import_module("stamina")
    library.instrumentation.set_on_retry_hooks([])
    settings = {
        "attempts": 3,
        "timeout": None,
        "wait_initial": 0,
        "wait_max": 0,
        "wait_jitter": 0,
    }
    caller = library.RetryingCaller(**settings).on(Failure)

    def block(fn: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            for attempt in library.retry_context(on=Failure, **settings):
                with attempt:
                    return fn()
            return None

        return run

    return {
        "sync": library.retry(on=Failure, **settings),
        "async": library.retry(on=Failure, **settings),
        "call": lambda fn: partial(caller, fn),
        "block": block,
    }


def backoff() -> Forms:
    """It decorates, and does nothing else."""
    library = import_module("backoff")
    decorator = library.on_exception(
        library.constant, Failure, interval=0, jitter=None, max_tries=3, logger=None
    )
    return {"sync": decorator, "async": decorator}


@frozen
class Library:
    """One column of the table."""

    name: str
    package: str | None
    """The module to import and its distribution; None for the loop."""
    forms: Callable[[], Forms]


LIBRARIES = (
    Library("loop", None, loop),
    Library("ours", "retrytemplate", ours),
    Library("tenacity", "tenacity", tenacity),
    Library("stamina", "stamina", stamina),
    Library("backoff", "backoff", backoff),
)
