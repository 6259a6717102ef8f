"""One place where the time limits that were over become the errors of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._internal.failure_text import message_of
from retrytemplate._internal.validation import check_function, checked_by
from retrytemplate.classify.exceptions import is_exception_class, iter_causes
from retrytemplate.control._strategy import StrategyBase, apply, apply_async, returns_result
from retrytemplate.control.classification.timeouts import timeout_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from retrytemplate.control._strategy import P, T

    # The class, or what makes the exception of the timeout; and whether it is worth a retry.
    Rule = tuple[type[Exception] | Callable[[BaseException], Exception], bool]


def _copy(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    try:
        return dict(rules)
    except (TypeError, ValueError):
        raise TypeError(f"rules must map kinds of limits to rules, got {rules!r}") from None


def _check_rule(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], bool):
        raise TypeError(
            f"{name} must be a tuple of an exception and whether it is retryable, got {value!r}"
        )
    if not is_exception_class(value[0]):
        check_function(f"{name}: the exception", value[0])
    elif not issubclass(value[0], Exception):
        raise ValueError(f"{name} must be a subclass of Exception, got {value[0].__name__}")


def _check_rules(name: str, value: Any) -> None:
    for kind, rule in value.items():
        if not isinstance(kind, str) or not kind:
            raise TypeError(f"{name} must map kinds of limits, which are texts, got {kind!r}")
        _check_rule(f"{name}: {kind!r}", rule)


@frozen(eq=False)
class ServiceErrors(StrategyBase):
    """Translates timeouts into the errors of a service, by their kind.

    :param rules: kinds of limits, each with the exception that takes the timeout's place and
        whether it is worth a retry.  The exception is a class, made with the timeout's text, or a
        function that makes one of the timeout.
    :param default: the same for kinds without a rule; None: such timeouts pass as they are.
    :raises ValueError: a class is not a subclass of ``Exception``.

    The kind is that of this library's limits (``kind`` of a ``DeadlineExceededError``,
    ``"attempt"``), or of a client's: see ``timeouts_of``.  The timeout is the cause.  ``with`` it,
    or wrap what answers, once, where requests come in.

    >>> from retrytemplate import DeadlineExceededError
    >>> class PartnerIsSlow(Exception): ...
    >>> class TooLate(Exception): ...
    >>> errors = ServiceErrors({"partner read": (PartnerIsSlow, True)}, default=(TooLate, False))
    >>> try:
    ...     with errors:
    ...         raise DeadlineExceededError("no answer in 2 seconds", kind="partner read")
    ... except PartnerIsSlow as error:
    ...     print(error, "-", errors.is_retryable(error))
    no answer in 2 seconds - True
    """

    rules: Mapping[str, Rule] = field(converter=_copy, validator=checked_by(_check_rules))
    default: Rule | None = field(default=None, validator=optional(checked_by(_check_rule)))

    def is_retryable(self, exc: BaseException) -> bool:
        """Whether the rule of this timeout, or of the one that caused it, marks it retryable.

        For a policy: ``SimpleRetryPolicy(3, retry_on=errors.is_retryable)``.
        """
        for each in iter_causes(exc):
            rule = self._rule(each)
            if rule is not None:
                return rule[1]
        return False

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function."""
        with self:
            return apply(fn, *args, **kwargs)

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, and await it."""
        with self:
            return await apply_async(fn, *args, **kwargs)

    def describe(self) -> str:
        """Its effect on a call."""
        return "timeouts become errors of the service"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        rule = None if exception is None else self._rule(exception)
        if exception is not None and rule is not None:
            made: Any = rule[0]
            is_class = is_exception_class(made)
            raise made(message_of(exception) if is_class else exception) from exception

    def _rule(self, exc: BaseException) -> Rule | None:
        kind = timeout_kind(exc)
        return None if kind is None else self.rules.get(kind, self.default)
