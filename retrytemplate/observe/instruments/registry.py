"""Live components by kind and name, and the gauges that their snapshots give."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.listeners.defaults import live_components, track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from weakref import ref

    from retrytemplate.observe.instruments.base import Gauge

LOG = logging.getLogger("retrytemplate.observe")
STATES = ("closed", "open", "half_open", "forced_open", "disabled", "metrics_only")


def _circuit_breaker(shown: Any, _: Any) -> Iterator[Gauge]:
    for state in STATES:
        yield "circuit_breaker.state", (shown.name, state), float(state == shown.state)
    ratio = shown.failures / shown.calls if shown.calls else 0.0
    yield "circuit_breaker.failure_ratio", (shown.name,), ratio


def _bulkhead(shown: Any, _: Any) -> Iterator[Gauge]:
    yield "bulkhead.usage", (shown.name,), shown.in_use
    yield "bulkhead.waiting", (shown.name,), shown.waiting
    yield "bulkhead.limit", (shown.name,), shown.limit


def _rate_limiter(shown: Any, _: Any) -> Iterator[Gauge]:
    yield "rate_limiter.available", (shown.name,), shown.available
    yield "rate_limiter.waiting", (shown.name,), shown.waiting


def _retry_budget(shown: Any, _: Any) -> Iterator[Gauge]:
    yield "retry_budget.available", (shown.name,), shown.available


def _kill_switch(shown: Any, switch: Any) -> Iterator[Gauge]:
    if switch.store.shared:
        yield "store.up", ("kill_switch", shown.name), float(not shown.lost)
    stopped = {("global", ""): 0.0}  # shown while nothing is stopped
    for entry in shown.entries:
        stopped[entry.scope.kind, entry.scope.name or ""] = 1.0 - entry.share / 100.0
    for scope, ratio in stopped.items():
        yield "kill_switch.stopped_ratio", (shown.name, *scope), ratio


def _task_supervisor(shown: Any, _: Any) -> Iterator[Gauge]:
    for operation, number in shown.active.items():
        yield "task.active", (shown.name, operation), number


def _worker_runtime(shown: Any, _: Any) -> Iterator[Gauge]:
    yield "message.suspects", (shown.queue_name,), shown.suspects


def _job_repository(shown: Any, _: Any) -> Iterator[Gauge]:
    for step, ratio in shown.progress.items():
        yield "step.progress_ratio", (step,), ratio
    for step, number in shown.backlog.items():
        yield "dead_letter.backlog", (step,), number


def _observer(shown: Any, _: Any) -> Iterator[Gauge]:
    for queue_name, depth in shown.queue_depths.items():
        yield "queue.depth", (queue_name,), depth
    for task, number in shown.active_tasks.items():
        yield "task.active", task, number


@frozen
class Kind:
    """A kind of component.

    :param type: module and name of its class, which is not imported for this.
    :param gauges: the gauges of a snapshot and its component, and ``names``: their metrics.
    """

    name: str
    type: str
    gauges: Callable[[Any, Any], Iterator[Gauge]]
    names: tuple[str, ...]


KINDS = (
    Kind(
        "circuit_breaker",
        "control.breaker.breaker.CircuitBreaker",
        _circuit_breaker,
        ("circuit_breaker.state", "circuit_breaker.failure_ratio"),
    ),
    Kind(
        "bulkhead",
        "control.bulkhead.bulkhead.Bulkhead",
        _bulkhead,
        ("bulkhead.usage", "bulkhead.waiting", "bulkhead.limit"),
    ),
    Kind(
        "rate_limiter",
        "control.rate_limiter.rate_limiter.RateLimiter",
        _rate_limiter,
        ("rate_limiter.available", "rate_limiter.waiting"),
    ),
    Kind(
        "retry_budget",
        "control.budget.budget.RetryBudget",
        _retry_budget,
        ("retry_budget.available",),
    ),
    Kind(
        "kill_switch",
        "control.switch.switch.KillSwitch",
        _kill_switch,
        ("kill_switch.stopped_ratio", "store.up"),
    ),
    Kind(
        "task_supervisor",
        "workers.supervisor.tasks.TaskSupervisor",
        _task_supervisor,
        ("task.active",),
    ),
    Kind(
        "worker_runtime",
        "workers.runtime.runtime.WorkerRuntime",
        _worker_runtime,
        ("message.suspects",),
    ),
    Kind(
        "job_repository",
        "batch.journal.repository.JobRepository",
        _job_repository,
        ("step.progress_ratio", "dead_letter.backlog"),
    ),
    Kind("observer", "observe.observer.Observer", _observer, ("queue.depth", "task.active")),
)
BY_TYPE = {f"retrytemplate.{each.type}": each for each in KINDS}


def _kind_of(component: Any) -> Kind:
    for each in type(component).__mro__:
        kind = BY_TYPE.get(f"{each.__module__}.{each.__qualname__}")
        if kind is not None:
            return kind
    types = ", ".join(each.type.rpartition(".")[2] for each in KINDS)
    raise TypeError(f"component must be one of {types}, got {component!r}")


class Registry:
    """Finds live components by kind and name.  It does not keep them alive.

    Without arguments it shows all live components of the process, also those created later.

    The kinds are ``circuit_breaker``, ``bulkhead``, ``rate_limiter``, ``retry_budget``,
    ``kill_switch``, ``task_supervisor``, ``worker_runtime``, ``job_repository`` and ``observer``.
    The name of a job repository is its database and the prefix of its tables.  Of two live
    components with one kind and name the newest is found, and a warning is logged once.  Any thread
    may use it.

    :param components: as for ``add``.

    >>> from retrytemplate.control import Bulkhead
    >>> from retrytemplate.observe import Registry
    >>> llm = Bulkhead("llm", limit=3)
    >>> registry = Registry(llm)
    >>> registry.find("bulkhead", "llm") is llm
    True
    >>> registry.snapshots()["bulkhead", "llm"].limit
    3
    """

    def __init__(self, *components: Any) -> None:
        self._shows_live = not components
        # By id, in the order of addition.
        self._components: dict[int, ref[Any]] = {}
        self._warned: set[tuple[str, str]] = set()
        self._failing: set[tuple[str, str]] = set()
        self.add(*components)

    def add(self, *components: Any) -> None:
        """Add components; one that is in the registry already becomes its newest.

        :raises TypeError: a component has none of the kinds.
        """
        for each in components:
            _kind_of(each)
            track(each, self._components)

    def find(self, kind: str, name: str) -> Any:
        """The newest live component of this kind and name, or None."""
        return self._live().get((kind, name))

    def snapshots(self) -> Mapping[tuple[str, str], Any]:
        """The snapshots of the live components by kind and name.

        A component whose snapshot raises, because its store is unavailable, is left out; this is
        logged once until it succeeds again.
        """
        return {key: shown for key, shown, _ in self._shown(self._live())}

    def gauges(self, *names: str) -> Iterator[Gauge]:
        """The gauges of the live components: metric, label values, value.

        :param names: the metrics; none: all.
        """
        live = {
            key: each
            for key, each in self._live().items()
            if not names or {*names} & {*_kind_of(each).names}
        }
        for _, shown, component in self._shown(live):
            for gauge in _kind_of(component).gauges(shown, component):
                if not names or gauge[0] in names:
                    yield gauge

    def _live(self) -> dict[tuple[str, str], Any]:
        of_process = live_components() if self._shows_live else []
        found: dict[tuple[str, str], Any] = {}
        for each in of_process + live_components(self._components):
            key = _kind_of(each).name, each.name
            self._warn_of_two(key, found.get(key, each), each)
            found[key] = each
        return found

    def _warn_of_two(self, key: tuple[str, str], one: Any, other: Any) -> None:
        if one is not other and key not in self._warned:
            self._warned.add(key)
            LOG.warning("two live components: %s %r; the newest is shown", *key)

    def _shown(
        self, live: dict[tuple[str, str], Any]
    ) -> Iterator[tuple[tuple[str, str], Any, Any]]:
        for key, component in live.items():
            try:
                shown = component.snapshot()
            except Exception:  # a snapshot is synchronous: no cancellation arrives here
                if key not in self._failing:
                    self._failing.add(key)
                    LOG.warning("no snapshot of the %s %r", *key, exc_info=True)
            else:
                self._failing.discard(key)
                yield key, shown, component


def given_registry(registry: Any) -> Registry:
    """The registry of an argument, checked; None: one of all live components."""
    if registry is None:
        return Registry()
    if not isinstance(registry, Registry):
        raise TypeError(f"registry must be a Registry or None, got {registry!r}")
    return registry
