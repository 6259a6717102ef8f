"""Measurements of an observer, given to its metrics."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.validation import check_methods, to_tuple
from retrytemplate.observe.failure_log import FailureLog
from retrytemplate.observe.instruments.base import LabelLimit
from retrytemplate.observe.instruments.memory import InMemoryMetrics
from retrytemplate.observe.instruments.table import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate.observe.instruments.base import Metrics

    FirstSuccess = Callable[[str, float], None]

FAILED = "the metrics %r raised an exception (%d so far); its measurements are lost"


class Measurements:
    """Gives measurements to several metrics; an exception of one of them changes nothing else.

    :param metrics: the receivers.
    :param max_label_values: of those without a limit of their own.
    :param now: the present time in seconds.
    :raises TypeError: an object has not the methods of ``Metrics``.
    """

    def __init__(
        self,
        metrics: Iterable[Metrics],
        max_label_values: int,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.metrics = to_tuple("metrics", metrics)
        for each in self.metrics:
            check_methods("metrics: each", each, "add", "record", "first_success")
        self._receivers = tuple(_Receiver(each, max_label_values, now) for each in self.metrics)

    def __bool__(self) -> bool:
        return bool(self._receivers)

    def add(self, name: str, *values: str, amount: float = 1.0) -> None:
        """Add to a counter.

        :param values: of its labels, in their order.
        """
        for each in self._receivers:
            each.give("add", name, values, amount)

    def record(self, name: str, *values: str, seconds: float) -> None:
        """Record a duration in a histogram.

        :param values: of its labels, in their order.
        """
        for each in self._receivers:
            each.give("record", name, values, max(0.0, seconds))

    @property
    def on_first_success(self) -> FirstSuccess:
        """The hook of a success at first attempt, with as few calls as possible."""
        hooks = tuple(each.on_first_success for each in self._receivers)
        if len(hooks) == 1:
            return hooks[0]

        def on_first_success(name: str, elapsed: float) -> None:
            for hook in hooks:
                hook(name, elapsed)

        return on_first_success


class _Receiver:
    """One metrics object; its exceptions are logged at most once per minute."""

    def __init__(self, metrics: Any, max_label_values: int, now: Callable[[], float]) -> None:
        self._metrics = metrics
        self._failures = FailureLog(FAILED, metrics, now=now)
        has_limit = getattr(metrics, "limits_labels", False)
        self._limit = None if has_limit else LabelLimit(max_label_values)
        self._monitor = Monitor()
        # A dict and a list of its own metrics raise nothing: no call around the method.
        is_direct = type(metrics) is InMemoryMetrics
        self.on_first_success: FirstSuccess = (
            metrics.first_success if is_direct else self._first_success
        )

    def give(self, method: str, name: str, values: tuple[str, ...], amount: float) -> None:
        """Call a method of the metrics with a measurement."""
        try:
            shown = self._limited(name, values)
            labels = dict(zip(INSTRUMENTS[name].labels, shown, strict=True))
            getattr(self._metrics, method)(name, labels, amount)
        except Exception:
            self._failures.add()

    def _first_success(self, template: str, elapsed: float) -> None:
        try:
            if self._limit is not None:
                [template, _] = self._limited("call.duration", (template, "success"))
            self._metrics.first_success(template, elapsed)
        except Exception:
            self._failures.add()

    def _limited(self, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
        limit = self._limit
        if limit is None:
            return values
        shown = self._monitor.read(limit.apply, INSTRUMENTS[name], values)
        if shown != values:
            limit.log()
            self._metrics.add("label.overflows", {"metric": name})
        return shown
