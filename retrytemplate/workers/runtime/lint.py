"""Checks of the settings of a runtime against each other, its source and its cache."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import is_async
from retrytemplate.control.isolation_gate.gate import HostGate
from retrytemplate.control.pipeline.lint import LintWarning
from retrytemplate.workers.runtime.threads import takes_stop_flag

if TYPE_CHECKING:
    from collections.abc import Iterator

STALLS_IN_A_LEASE = 3
SMALLEST_DELIVERY_LIMIT = 20
DELIVERIES_PER_ATTEMPT = 4


def lint(runtime: Any, longest_stall: float) -> tuple[LintWarning, ...]:
    """The warnings about a runtime.

    :param longest_stall: seconds for which its event loop was blocked, at most.
    """
    checks = (_visibility, _shutdown, _lease, _delivery_limit, _dead_letters, _gate, _handler)
    return tuple(
        LintWarning(rule=rule, reason=reason, remedy=remedy)
        for check in checks
        for rule, reason, remedy in check(runtime, longest_stall)
    )


def _visibility(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    visibility = runtime.source.visibility_timeout
    if visibility is None:
        return
    needed = runtime.attempt_timeout + runtime.settle_timeout
    if needed > visibility and not getattr(runtime.source, "can_extend", True):
        yield (
            "timeout-exceeds-visibility",
            f"an attempt and its settlement take up to {needed:g} s, and the queue delivers the "
            f"message again after {visibility:g} s",
            "raise the visibility timeout, or lower attempt_timeout",
        )
    if runtime.shutdown.grace > visibility:
        yield (
            "grace-exceeds-visibility",
            f"the grace period is {runtime.shutdown.grace:g} s, the visibility timeout "
            f"{visibility:g} s",
            "lower Shutdown(grace=), or raise the visibility timeout",
        )
    if runtime.remember <= visibility:
        yield (
            "remember-below-visibility",
            f"a success is remembered for {runtime.remember:g} s, and the queue delivers a message "
            f"again after {visibility:g} s",
            "raise remember above the visibility timeout",
        )


def _shutdown(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    limits = runtime.shutdown
    if limits.total > limits.orchestrator:
        yield (
            "shutdown-exceeds-orchestrator",
            f"a shutdown takes up to {limits.total:g} s, and the process is killed after "
            f"{limits.orchestrator:g} s",
            "lower the limits of Shutdown, or raise the orchestrator's grace period",
        )


def _lease(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    lease = getattr(runtime.cache, "lease", None)
    if lease is not None and lease < STALLS_IN_A_LEASE * stall:
        yield (
            "lease-below-stall",
            f"the event loop was blocked for {stall:.3g} s, and a lease is {lease:g} s",
            "raise the lease of the cache, or find the blocking call",
        )


def _delivery_limit(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    limit = getattr(runtime.source, "delivery_limit", None)
    if limit is None:
        return
    attempts = runtime.retry.max_attempts or 1
    least = max(
        SMALLEST_DELIVERY_LIMIT,
        DELIVERIES_PER_ATTEMPT * (1 + runtime.retry.max_crashes + attempts),
    )
    if limit < least:
        yield (
            "broker-delivery-limit-low",
            f"the broker dead-letters a message after {limit} deliveries, also one that was only "
            "prefetched by processes that crashed",
            f"raise its delivery limit to at least {least}, or remove it",
        )


def _dead_letters(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    if getattr(runtime.source, "dead_letters", "") is None:
        yield (
            "no-dead-letter-target",
            "dead letters are written nowhere: the message is lost when its attempts are exhausted",
            "name a target in dead_letters",
        )


def _gate(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    # A child of multiprocessing has siblings, which may crash with it.
    process = sys.modules.get("multiprocessing.process")
    is_child = process is not None and process.parent_process() is not None
    if is_child and not isinstance(runtime.gate, HostGate):
        yield (
            "gate-too-small",
            "the runtime is in a child process, and its gate spans this process only: a crash that "
            "ends several processes is attributed to messages that did not cause it",
            "pass gate=HostGate(), unless each process has a container of its own",
        )


def _handler(runtime: Any, stall: float) -> Iterator[tuple[str, str, str]]:
    if not is_async(runtime.handler) and not takes_stop_flag(runtime.handler):
        yield (
            "sync-handler-without-client-timeout",
            "a plain function is not interrupted at attempt_timeout: its thread continues",
            "set the timeouts of its clients below attempt_timeout, give it a parameter stop and "
            "return when that is set, or make it async",
        )
