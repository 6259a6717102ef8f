"""Process-wide listeners, the templates whose plans contain them, and all live components."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from retrytemplate.listeners.base import HOOKS, RetryListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from retrytemplate._engine.context import RetryContext

    class Follower(Protocol):
        """An object whose prepared data depends on the process-wide settings."""

        def _on_settings_changed(self) -> None: ...


__all__ = [
    "DEFAULT_LOG",
    "INFO",
    "NO_LOG",
    "add_default",
    "default_listeners",
    "follow",
    "listener_type",
    "live_components",
    "notify_followers",
    "remove_default",
    "settings_version",
    "track",
    "untrack",
    "with_defaults",
]

INFO = 20  # of the logging module, which is not imported here
T = TypeVar("T")


class DefaultLog(RetryListener):
    """Logs retries and executions without success at INFO, if that level is enabled.

    It is a default listener of every process.  It logs nothing for a template with another listener
    that logs, such as a ``LoggingListener``.
    """

    needs_start_time = False
    is_enabled: Callable[[int], bool]
    """Whether a record of this level would be logged."""
    _listener: Any = None

    def __init__(self) -> None:
        self.is_enabled = self._is_enabled

    def _is_enabled(self, level: int) -> bool:
        get_logger = getattr(sys.modules.get("logging"), "getLogger", None)
        if get_logger is None:  # the program has configured no handler
            return False
        # Each failed execution calls it: without a method of this class around the logger's.
        self.is_enabled = get_logger("retrytemplate").isEnabledFor
        return self.is_enabled(level)

    def _log(self) -> Any:
        if self._listener is None:
            package = __name__.rpartition(".")[0]
            kind = sys.modules[package].LoggingListener  # which imports it on first use
            self._listener = kind(
                level=INFO, recovery_level=INFO, store_error_level=INFO, failure_level=INFO
            )
        return self._listener

    # The engine calls on_backoff and on_end only if the level is enabled.

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        self._log().on_backoff(context, delay)

    def on_store_error(self, context: RetryContext, exception: BaseException) -> None:
        if self.is_enabled(INFO):
            self._log().on_store_error(context, exception)

    def on_end(self, context: RetryContext, exception: BaseException | None) -> None:
        self._log().on_end(context, exception)

    def __repr__(self) -> str:
        return "<the built-in log>"


class NoLog:
    """Stands for the built-in log in templates without it."""

    def is_enabled(self, level: int) -> bool:
        return False


NO_LOG = NoLog()
DEFAULT_LOG = DefaultLog()
"""The built-in default listener; ``remove_default`` takes it."""

# By id, in the order of registration: each change is one atomic step of a dict.
_listeners: dict[int, Any] = {id(DEFAULT_LOG): DEFAULT_LOG}
_types: list[type] = [RetryListener]
_followers: set[ref[Any]] = set()  # not a WeakSet, whose methods may be interrupted
_components: dict[int, ref[Any]] = {}  # by id, in the order of their creation
_version = object()


def add_default(listener: Any) -> None:
    """Add a listener to every template, control object and step of the process.

    It comes before the listeners of the object, also in objects that were created before.  Running
    executions keep the listeners they started with.  A listener that is a default listener and an
    object's own is notified once.  A second call with the same listener changes nothing.

    :param listener: a ``RetryListener``, ``ControlListener`` or ``StepListener``, or several of
        them in one.
    :raises TypeError: for any other object.

    >>> from retrytemplate import RetryListener, RetryTemplate
    >>> class Count(RetryListener):
    ...     errors = 0
    ...     def on_error(self, context, exception):
    ...         self.errors += 1
    >>> template, count = RetryTemplate(), Count()
    >>> add_default(count)
    >>> template.outcome(int, "x").ok, count.errors
    (False, 3)
    >>> remove_default(count)
    """
    is_known = any(isinstance(listener, each) for each in _types)
    hooks = (*HOOKS, "on_first_success")
    if isinstance(listener, type) or not (
        is_known or any(hasattr(listener, hook) for hook in hooks)
    ):
        raise TypeError(
            "listener must be a RetryListener, ControlListener or StepListener object, "
            f"got {listener!r}"
        )
    _listeners[id(listener)] = listener
    notify_followers()


def remove_default(listener: Any) -> None:
    """Remove a default listener from every object of the process.

    :param listener: one that ``add_default`` has added, or ``DEFAULT_LOG``, the built-in log.
    :raises ValueError: it is not a default listener.
    """
    if _listeners.pop(id(listener), None) is None:
        raise ValueError(f"listener must be a default listener, got {listener!r}")
    notify_followers()


def default_listeners() -> tuple[Any, ...]:
    """The default listeners in their order; the built-in log is the first.

    >>> default_listeners()
    (<the built-in log>,)
    """
    return tuple(_listeners.values())


def listener_type(kind: type[T]) -> type[T]:
    """Class decorator: objects of this class may be default listeners."""
    _types.append(kind)
    return kind


def with_defaults(listeners: Iterable[Any], kind: type) -> list[Any]:
    """The default listeners of one class, then an object's own; each of both once.

    :param kind: a template takes objects of other classes, too, if they have a hook.
    """
    others = tuple(each for each in _types if each is not RetryListener)
    defaults = [
        each
        for each in default_listeners()
        if isinstance(each, kind) or (kind is RetryListener and not isinstance(each, others))
    ]
    return defaults + [each for each in listeners if not any(each is other for other in defaults)]


def follow(follower: Follower) -> None:
    """Notify an object of changes while it is alive."""
    _followers.add(ref(follower, _followers.discard))


def settings_version() -> object:
    """Another object after each change of a process-wide setting."""
    return _version


def notify_followers() -> None:
    """Notify every live object that a process-wide setting has changed."""
    global _version
    _version = object()
    for each in _followers.copy():
        follower = each()
        if follower is not None:
            follower._on_settings_changed()


def track(component: Any, components: dict[int, ref[Any]] = _components) -> None:
    """Make an object one of the live components, as long as it is alive; the newest one.

    :param components: those of the process, or of a registry.
    """
    components.pop(id(component), None)
    components[id(component)] = ref(component, partial(_forget, components, id(component)))


def untrack(component: Any) -> None:
    """Let an object be none of the live components of the process any more."""
    _components.pop(id(component), None)


def live_components(components: dict[int, ref[Any]] = _components) -> list[Any]:
    """The components that are alive, the newest last."""
    found = [each() for each in tuple(components.values())]
    return [each for each in found if each is not None]


def _forget(components: dict[int, ref[Any]], key: int, _: ref[Any]) -> None:
    components.pop(key, None)
