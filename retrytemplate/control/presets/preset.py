"""Settings for calls of one kind, and the templates that are made with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, overload

from attrs import evolve, field, fields, frozen

from retrytemplate._engine.settings import to_attempt_timeout, to_guards
from retrytemplate._internal.suggestions import check_names
from retrytemplate._internal.validation import (
    check_delay,
    check_function,
    check_text,
    checked_by,
    instance_of,
    to_seconds,
)
from retrytemplate.backoff.exponential import JITTERS, ExponentialBackoff
from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.classify.exceptions import ExceptionClassifier
from retrytemplate.control.budget.budget import RetryBudget
from retrytemplate.control.classification.codes import CodeClassifier
from retrytemplate.control.http.retry import (
    IdempotentRequestClassifier,
    RetryAfterGuard,
    reject_derived_settings,
)
from retrytemplate.control.idempotency.keys import HEADER, RequireIdempotency
from retrytemplate.control.presets.jitter import AddedJitter
from retrytemplate.control.presets.strict import check
from retrytemplate.control.timeout.stream import StreamTimeout
from retrytemplate.errors import MisuseError
from retrytemplate.policies.simple import SimpleRetryPolicy, check_retryable
from retrytemplate.template import RetryTemplate

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
    from datetime import timedelta
    from typing import Literal, Self, Unpack

    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.settings import SurroundingSettings
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.backoff.exponential import Jitter

T = TypeVar("T")
BY_REQUEST: Final = "by_request"
DERIVED_SETTINGS = {
    "policy": "made of the preset's retry_on and max_attempts, which with_() changes",
    "backoff": "made of the preset's initial, multiplier, maximum, jitter and give_up_above, which "
    "with_() changes",
    "attempt_timeout": "the preset's, which with_() changes",
}


class PresetSettings(TypedDict, total=False):
    """The parameters of ``Preset``, none of them required."""

    name: str
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | ExceptionClassifier
    max_attempts: int
    attempt_timeout: AttemptTimeout | Seconds | None
    initial: Seconds
    multiplier: float
    maximum: Seconds
    jitter: float | timedelta | Jitter | None
    give_up_above: Seconds | None
    idempotent: bool | Literal["by_request"] | Callable[[RetryContext], Any] | None
    budget: bool | RetryBudget
    stream: StreamTimeout | None
    strict: bool


def _classes(value: Any) -> Any:
    return (value,) if isinstance(value, type) else value


def _check_retry_on(name: str, value: Any) -> None:
    if isinstance(value, ExceptionClassifier):
        return
    if not isinstance(value, tuple) or not value:
        raise TypeError(
            f"{name} must be exception classes or an ExceptionClassifier, got {value!r}"
        )
    check_retryable(name, value)


def _check_jitter(name: str, value: Any) -> None:
    names = ", ".join(map(repr, JITTERS))
    if isinstance(value, str | None):
        if value not in JITTERS:
            raise ValueError(f"{name} must be one of {names}, or seconds, got {value!r}")
    else:
        check_delay(name, value)


def _check_idempotent(name: str, value: Any) -> None:
    if isinstance(value, str) and value != BY_REQUEST:
        raise ValueError(
            f"{name} must be True, False, None, a function or {BY_REQUEST!r}, got {value!r}"
        )
    if value is not None and not isinstance(value, bool | str):
        check_function(name, value)


@frozen(repr=False)
class Preset:
    """Settings for calls of one kind, under a name; the defaults are those of ``FAST_IO``.

    :param name: registered name; also names its retry budget.
    :param retry_on: exception classes, or an ``ExceptionClassifier``.  With classes, a failure
        with an HTTP status of 4xx is not retried.
    :param max_attempts: the number of attempts, including the first one.
    :param attempt_timeout: seconds for each attempt, or as for a template; None: no limit.
    :param initial: the first delay, in seconds.
    :param multiplier: the factor between two delays.
    :param maximum: the longest delay with its jitter, in seconds.
    :param jitter: longest random addition to a delay, in seconds, or a jitter mode of
        ``ExponentialBackoff``; None: no jitter.
    :param give_up_above: longest accepted ``Retry-After``, in seconds; a longer one ends the
        retries; None: no limit.
    :param idempotent: whether a call may be repeated: True; False (only with an idempotency key); a
        function of the context; ``"by_request"`` (HTTP method and key decide); None: not checked.
    :param budget: a ``RetryBudget`` that the templates share; True: each gets one of its own.
    :param stream: the timeouts of a streamed response, for ``over``; None: none.
    :param strict: reject settings that are incomplete for production: see ``strict``.
    :raises UnsafeRetryError: ``strict`` is True and a production setting is missing.
    :raises ValueError: for a number out of its range.

    >>> from retrytemplate.control import FAST_IO
    >>> patient = FAST_IO.with_(name="ledger", max_attempts=5, attempt_timeout=3.0)
    >>> patient.template().policy.max_attempts, patient.maximum
    (5, 2.0)
    """

    name: str = field(validator=checked_by(check_text))
    retry_on: tuple[type[BaseException], ...] | ExceptionClassifier = field(
        default=(TimeoutError, OSError),
        converter=_classes,
        validator=checked_by(_check_retry_on),
    )
    max_attempts: int = 3
    attempt_timeout: Any = 2.0
    initial: float = field(default=0.2, converter=to_seconds)
    multiplier: float = 2.0
    maximum: float = field(default=2.0, converter=to_seconds)
    jitter: float | Jitter | None = field(
        default=0.1, converter=to_seconds, validator=checked_by(_check_jitter)
    )
    give_up_above: float | None = field(default=2.0, converter=to_seconds)
    idempotent: Any = field(default=None, validator=checked_by(_check_idempotent))
    budget: bool | RetryBudget = field(
        default=False, validator=instance_of((bool, RetryBudget), "a RetryBudget, True or False")
    )
    stream: StreamTimeout | None = field(
        default=None, validator=instance_of((StreamTimeout, type(None)), "a StreamTimeout or None")
    )
    strict: bool = field(default=False, validator=instance_of(bool, "True or False"))
    _wait: RetryAfterBackoff = field(init=False, eq=False)
    _policy: SimpleRetryPolicy = field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        # Shared by the templates, and checked here.
        object.__setattr__(self, "_wait", RetryAfterBackoff(self._backoff(), self.give_up_above))
        policy = SimpleRetryPolicy(self.max_attempts, classifier=self._classifier())
        object.__setattr__(self, "_policy", policy)
        to_attempt_timeout(self.attempt_timeout)
        if self.strict:
            self.template()

    def __repr__(self) -> str:
        limit = to_seconds(self.attempt_timeout)
        each = "" if limit is None else f" of up to {getattr(limit, 'seconds', limit):g} s"
        attempts = f"{self.max_attempts} attempts{each}"
        return (
            f"<Preset {self.name!r}: {attempts}, waits of {self.initial:g} to {self.maximum:g} s>"
        )

    def with_(self, **changes: Unpack[PresetSettings]) -> Self:
        """A copy with some fields changed.

        :param changes: the fields by their names, as the class takes them; without a new ``name``
            the copy has the old one.
        :raises UnsafeRetryError: the preset is strict, and a production setting would be missing.
        :raises ValueError: for a number out of its range.
        :raises TypeError: for an unknown field, or a value of a wrong type.

        >>> from retrytemplate.control import FAST_IO
        >>> FAST_IO.with_(jitter="full").jitter, FAST_IO.jitter
        ('full', 0.1)
        """
        known = [each.name for each in fields(Preset) if each.init]
        check_names("setting", changes, known)
        return evolve(self, **changes)

    def template(self, **settings: Unpack[SurroundingSettings]) -> RetryTemplate:
        """A template with these settings.

        :param settings: the template's other ones: ``name``, ``listeners``, ``cache``, ``clock``,
            ...  Guards are checked before those of the preset.
        :raises TypeError: for one that comes from the preset.

        >>> from retrytemplate.control import HTTPX
        >>> HTTPX.template(name="orders").name
        'orders'
        """
        reject_derived_settings(settings, DERIVED_SETTINGS)
        known = [
            each.name
            for each in fields(RetryTemplate)
            if each.init and each.name not in DERIVED_SETTINGS
        ]
        check_names("setting", settings, known)
        clock = settings.get("clock")
        given: dict[str, Any] = {} if clock is None else {"clock": clock}
        wait = evolve(self._wait, **given) if given else self._wait
        guards = (*to_guards(settings.get("guards", ())), RetryAfterGuard(wait))
        others: dict[str, Any] = {**settings, "guards": (*guards, *self._guards(given))}
        made = RetryTemplate(self._policy, wait, attempt_timeout=self.attempt_timeout, **others)
        if self.strict:
            check(made, self)
        return made

    @overload
    def over(self, stream: AsyncIterable[T]) -> AsyncIterator[T]: ...

    @overload
    def over(self, stream: Iterable[T]) -> Iterator[T]: ...

    def over(self, stream: Any) -> Any:
        """The items of a stream, each within the limits of the preset's ``stream``.

        :param stream: an iterable or an async iterable.
        :raises DeadlineExceededError: from the iterator, for an item that does not come in time.
        :raises MisuseError: the preset has no stream timeouts.

        >>> from retrytemplate.control import STREAMING
        >>> list(STREAMING.over(["Once", "upon"]))
        ['Once', 'upon']
        """
        if self.stream is None:
            raise MisuseError(
                f"the preset {self.name!r} has no stream timeouts; "
                "set them: with_(stream=StreamTimeout())"
            )
        return self.stream.over(stream)

    def _backoff(self) -> Backoff:
        jitter = self.jitter
        if jitter is None or isinstance(jitter, str):
            return ExponentialBackoff(self.initial, self.multiplier, self.maximum, jitter)
        waits = ExponentialBackoff(self.initial, self.multiplier, self.maximum)
        return AddedJitter(waits, jitter, self.maximum)

    def _classifier(self) -> ExceptionClassifier:
        worth = self.retry_on
        if not isinstance(worth, ExceptionClassifier):
            worth = CodeClassifier(dict.fromkeys(worth, True), status={"4xx": False})
        if self.idempotent == BY_REQUEST:
            return IdempotentRequestClassifier({}, of=worth, idempotent=False, key_header=HEADER)
        return worth

    def _guards(self, given: dict[str, Any]) -> Iterator[Any]:
        """The budget comes last: it pays for a retry that no other guard rejects."""
        if self.idempotent not in (None, BY_REQUEST):
            yield RequireIdempotency(idempotent=self.idempotent)
        if isinstance(self.budget, RetryBudget):
            yield self.budget
        elif self.budget:
            yield RetryBudget(name=self.name, **given)
