"""``retryable``: a decorator for functions, methods and classes."""

from __future__ import annotations

from functools import update_wrapper
from inspect import getattr_static, isfunction
from typing import TYPE_CHECKING, Any, Never

from retrytemplate._engine.wrapping import RetryWith, descriptor, wrap
from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.formatting import qualified_name
from retrytemplate._internal.validation import check_text_or_none
from retrytemplate.backoff.base import NoBackoff
from retrytemplate.declarative.arguments import ArgumentAdapter, call_of, signature_of
from retrytemplate.declarative.recovery_methods import (
    PerCallRecovery,
    check_named_recoverer,
    is_recoverer,
    recoverer_names,
)
from retrytemplate.errors import MisuseError
from retrytemplate.policies.base import RetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.state import RetryState
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from retrytemplate._engine.wrapping import Decorator
    from retrytemplate.backoff.base import Backoff

    Types = type[BaseException] | tuple[type[BaseException], ...]

__all__ = ["retryable"]

HINT = (
    "name the retryable errors, @retryable(retry_on=(ConnectionError,)), or pass a policy or a "
    "template"
)


def retryable(
    *bare: Never,
    retry_on: Types | Callable[[BaseException], Any] | None = None,
    not_on: Types = (),
    max_attempts: int | Callable[[], int] | None = None,
    backoff: Backoff | None = None,
    policy: RetryPolicy | None = None,
    recover: Callable[..., Any] | str | None = None,
    key: Callable[..., Any] | None = None,
    listeners: Iterable[Any] = (),
    label: str | None = None,
    template: RetryTemplate | None = None,
) -> Decorator:
    """Decorate a function, a method or a class so that its calls retry; callers stay as they are.

    :param retry_on: retryable errors: an exception class, a tuple of them or a predicate.
    :param not_on: classes that are not retryable; the most specific class decides.
    :param max_attempts: attempts including the first, default 3; or a callable, read per call.
    :param backoff: the delays between attempts; none by default.
    :param policy: a policy instead of ``retry_on``, ``not_on`` and ``max_attempts``.
    :param recover: ``recover(error, *args, **kwargs)`` is called when attempts are exhausted, with
        the arguments of the call (including ``self``), or as many of them as it takes, from the
        left; its result is returned.  Or a method marked ``@recover``, or the name of one.  By
        default, any method of the class marked ``@recover`` may be selected.
    :param key: makes the retry stateful: ``key(*args, **kwargs)`` identifies work that may be
        redelivered.  It takes the arguments of the call, or as many as it has parameters, from the
        left.  The key None keeps no state; a ``RetryState`` is used unchanged.
    :param listeners: the listeners of the executions.
    :param label: the name in logs and metrics; default: the qualified name of the function.
    :param template: a template, which has all settings but ``recover``, ``key`` and ``label``.
        All users of a template share its keys.
    :raises MisuseError: no argument names the retryable errors (also ``@retryable`` without
        arguments), or an argument belongs to the template or policy that was passed.
    :raises MisuseError: the function is already wrapped by a template.
    :raises TypeError: ``recover`` or ``key`` cannot take the arguments, or is asynchronous where
        nothing awaits it; raised when the function is decorated.

    Generator functions are retried until they yield their first item; their recovery yields the
    items instead.

    On a class: all public methods, including inherited ones, except those marked ``@recover``,
    those that retry already (``@retryable``, ``wrap``), abstract methods and properties.  An
    inherited method is wrapped for this class and its subclasses only; a method that a subclass
    overrides is the subclass's own.
    A method that calls another one retries inside a retry: then mark single methods, or use
    ``intercept``, which leaves calls inside the object alone.

    >>> from retrytemplate import retryable
    >>> answers = iter([ConnectionError("reset"), "17 pieces"])
    >>> @retryable(retry_on=ConnectionError, max_attempts=3)
    ... def stock(item: str) -> str:
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> stock("tea")
    '17 pieces'

    Source: ``org.springframework.retry.annotation.Retryable``.
    """
    if bare:
        raise MisuseError(f"retryable takes no positional argument, got {bare[0]!r}: {HINT}")
    rules = {
        "retry_on": retry_on is not None,
        "not_on": not_on != (),
        "max_attempts": max_attempts is not None,
    }
    if template is not None:
        others = {
            "backoff": backoff is not None,
            "policy": policy is not None,
            "listeners": listeners not in ((), []),
        }
        _check_exclusive("template", template, RetryTemplate, rules | others)
        return Settings(template, False, recover, key, label).decorate
    if policy is not None:
        _check_exclusive("policy", policy, RetryPolicy, rules)
    elif retry_on is None:
        raise MisuseError(HINT)
    else:
        policy = SimpleRetryPolicy(3 if max_attempts is None else max_attempts, retry_on, not_on)
    made = RetryTemplate(policy, NoBackoff() if backoff is None else backoff, listeners=listeners)
    return Settings(made, True, recover, key, label).decorate


def _check_exclusive(name: str, value: Any, kind: type, given: dict[str, bool]) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")
    names = [each for each, is_given in given.items() if is_given]
    if names:
        raise MisuseError(
            f"{' and '.join(names)} and {name}= are mutually exclusive; "
            f"set it on the {name}, got {value!r}"
        )


class PerCallState:
    """The state of a stateful retry: the arguments of each call give the key."""

    __slots__ = ("fn", "key")

    def __init__(self, fn: Any, key: Callable[..., Any]) -> None:
        self.fn = fn
        self.key = ArgumentAdapter(key, signature_of(fn), 0)

    def for_call(self, function: Any, arguments: tuple[Any, ...]) -> RetryState:
        """The state of this call."""
        args, kwargs = self.key.adapt(*call_of(self.fn, function, arguments))
        key = self.key.function(*args, **kwargs)
        if isinstance(key, RetryState):
            return key
        return RetryState.untracked() if key is None else RetryState(key)


class Settings:
    """The settings of a ``@retryable``, which may decorate many functions."""

    __slots__ = ("key", "label", "own", "recover", "template")

    def __init__(
        self, template: RetryTemplate, own: bool, recover: Any, key: Any, label: Any
    ) -> None:
        if recover is not None and not isinstance(recover, str) and not callable(recover):
            raise TypeError(
                f"recover must be a function, a method marked @recover or its name, got {recover!r}"
            )
        if key is not None and (not callable(key) or is_async(key)):
            raise TypeError(
                f"key must be a synchronous callable that takes the call's arguments, got {key!r}"
            )
        check_text_or_none("label", label)
        self.template = template
        self.own = own
        self.key = key
        self.label = label
        # A recoverer stands for the method of that name of the instance.
        self.recover = getattr(recover, "__name__", "") if is_recoverer(recover) else recover

    def decorate(self, target: Any, /) -> Any:
        """The function, method or class with retry."""
        if isinstance(target, type):
            self._decorate_class(target)
            return target
        return self._decorated(target)

    def _decorated(self, target: Any) -> Any:
        if isinstance(target, staticmethod):
            return descriptor(staticmethod, self._function(target.__func__, None))
        if isinstance(target, classmethod):
            function = target.__func__
            around = self._function(function, _enclosing_class(function))
            wrapped: Any = descriptor(classmethod, around)
        elif isinstance(target, property) or not callable(target):
            raise TypeError(
                f"retryable takes a function, a method or a class, got {target!r}: "
                "decorate the function inside"
            )
        else:
            function = target
            wrapped = self._function(function, _enclosing_class(function))
        if isinstance(self.recover, str):
            return DeferredRecoverer(wrapped, self.recover, is_async(function))
        return wrapped

    def _function(self, fn: Any, holder: str | None) -> Any:
        """One function, wrapped by a template that is bound to it."""
        asynchronous = is_async(fn)
        name = qualified_name(fn)
        template = self.template
        # A template of its own has one function: the name separates the keys of several functions.
        label = self.label or template.name or name
        if self.own:
            template = template.with_(name=name)
        recovery = self._recovery(fn, asynchronous, holder, template)
        state: Any = None
        if self.key is not None:
            state = PerCallState(fn, self.key)
            state.key.check("key")
        return wrap(BoundTemplate(template, recovery, state, label), fn)

    def _recovery(
        self, fn: Any, asynchronous: bool, holder: str | None, template: RetryTemplate
    ) -> Any:
        recover = self.recover
        if recover is None and holder is None:
            return template.recovery
        if recover is None or isinstance(recover, str):
            if holder is None:
                raise MisuseError(
                    f"recover={recover!r} names a method, but {qualified_name(fn)} has no instance"
                )
            return PerCallRecovery(
                fn,
                asynchronous=asynchronous,
                holder=holder,
                name=recover,
                otherwise=template.recovery,
            )
        if is_async(recover) and not asynchronous:
            raise MisuseError(
                f"recover must be a plain function where {qualified_name(fn)} is one, "
                f"got {recover!r}, which nothing would await"
            )
        ArgumentAdapter(recover, signature_of(fn), 1).check("recover", "error")
        return PerCallRecovery(fn, fallback=recover)

    def _decorate_class(self, cls: type) -> None:
        methods = dict(_retried_methods(cls))
        if not methods:
            raise MisuseError(f"retryable: {cls.__qualname__} has no public method to retry")
        if isinstance(self.recover, str):
            for member in methods.values():
                function = getattr(member, "__func__", member)
                check_named_recoverer(cls, self.recover, is_async(function))
        for name, member in methods.items():
            function = getattr(member, "__func__", member)
            static = isinstance(member, staticmethod)
            wrapped = self._function(function, None if static else "")
            setattr(cls, name, wrapped if function is member else descriptor(type(member), wrapped))


def _retried_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods that a decorator on the class wraps, own and inherited."""
    recoverers = recoverer_names(cls)
    for name in dict.fromkeys(name for base in cls.__mro__ for name in vars(base)):
        member = getattr_static(cls, name)
        function = getattr(member, "__func__", member)
        if (
            isfunction(function)
            and not name.startswith("_")
            and name not in recoverers
            and type(getattr(function, "retry_with", None)) is not RetryWith
            and not getattr(function, "__isabstractmethod__", False)
        ):
            yield name, member


class DeferredRecoverer:
    """A method whose recoverer is named: checked when the class is created.

    Then the plain method replaces this object.
    """

    def __init__(self, method: Any, name: str, asynchronous: bool) -> None:
        self.method = method
        self.name = name
        self.asynchronous = asynchronous
        update_wrapper(self, getattr(method, "__func__", method))

    def __set_name__(self, owner: type, name: str) -> None:
        setattr(owner, name, self.method)
        check_named_recoverer(owner, self.name, self.asynchronous)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.method.__get__(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)


def _enclosing_class(fn: Any) -> str | None:
    """The qualified name of the class in whose body a function was defined, or None."""
    around: str = getattr(fn, "__qualname__", "").rpartition(".")[0]
    return None if not around or around.endswith("<locals>") else around
