"""Groups of failures, and several works at once with one result."""

from __future__ import annotations

from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate._internal.validation import check_choice, check_function, check_methods
from retrytemplate.classify.exceptions import (
    is_exception_class,
    is_never_retried,
    iter_leaf_exceptions,
)
from retrytemplate.workers.supervisor.pool import (
    Failed,
    Gathered,
    Pool,
    awaitable_of,
    log_failures,
    outcome_of,
)
from retrytemplate.workers.supervisor.task_group import run_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.classify.exceptions import ExceptionClassifier

    T = TypeVar("T")
    R = TypeVar("R")


def leaf_exceptions(group: BaseException) -> tuple[BaseException, ...]:
    """The exceptions in a group, nested groups included.

    :param group: an exception group; any other exception is its own leaf.

    >>> failures = ExceptionGroup("all", [OSError(), ExceptionGroup("some", [ValueError()])])
    >>> leaf_exceptions(failures)
    (OSError(), ValueError())
    """
    return tuple(iter_leaf_exceptions(group))


def split_group(
    error: BaseException, *types: type[BaseException]
) -> tuple[BaseException | None, BaseException | None]:
    """Split a group by type: the matching part and the rest; None for an empty part.

    :param error: an exception group, whose parts are groups; any other exception is one part.
    :param types: at least one exception class.
    :raises TypeError: a type is not an exception class, or none is given.

    >>> both = ExceptionGroup("both", [ValueError("no name"), OSError("reset")])
    >>> invalid, rest = split_group(both, ValueError)
    >>> invalid.exceptions, rest.exceptions
    ((ValueError('no name'),), (OSError('reset'),))
    """
    if not types or not all(map(is_exception_class, types)):
        raise TypeError(f"types must be one or more exception classes, got {types!r}")
    if isinstance(error, BaseExceptionGroup):
        return error.split(types)
    return (error, None) if isinstance(error, types) else (None, error)


def translate_group(
    error: BaseException,
    *,
    retryable: Callable[[int], Exception],
    rejected: Callable[[int], Exception],
    classifier: ExceptionClassifier | None = None,
) -> Exception:
    """Make one error of a service from a group of failures, for the border of the service.

    :param error: the group, or a single exception; it becomes the cause.
    :param retryable: makes the error if every leaf of the group is retryable; gets the number of
        leaves.
    :param rejected: makes the error otherwise, with the same number.
    :param classifier: has ``classify(exception)``, true for a retryable one; default:
        ``retrytemplate.control.TRANSIENT_ERRORS``.
    :return: the error, to be raised.
    :raises BaseException: the *error* itself, unchanged, if it is or contains a cancellation, or
        another exception that is never retried.

    >>> class Unavailable(Exception): ...
    >>> class Invalid(Exception): ...
    >>> group = ExceptionGroup("orders", [ConnectionError("reset"), TimeoutError()])
    >>> translate_group(group, retryable=Unavailable, rejected=Invalid)
    Unavailable(2)
    """
    for name, make in (("retryable", retryable), ("rejected", rejected)):
        if not is_exception_class(make):
            check_function(name, make)
    if classifier is None:
        from retrytemplate.control.classification.failure_kind import TRANSIENT_ERRORS

        classifier = TRANSIENT_ERRORS
    check_methods("classifier", classifier, "classify")
    if is_never_retried(error):
        raise error
    leaves = leaf_exceptions(error)
    make = retryable if all(map(classifier.classify, leaves)) else rejected
    made = make(len(leaves))
    made.__cause__ = error
    return made


async def gather_all(
    *works: Awaitable[Any] | Callable[[], Awaitable[Any]],
    on_failure: Literal["cancel", "collect"],
) -> Gathered:
    """Run works concurrently, in a task each, and wait until all have ended; asyncio or trio.

    :param works: coroutine functions without parameters, or awaitables.
    :param on_failure: ``"cancel"``: the first failure cancels the other works, and all failures are
        raised.  ``"collect"``: the other works continue; failures are logged and returned.
    :raises ExceptionGroup: with ``"cancel"``, the failures.
    :raises TypeError: a work is neither callable nor awaitable.

    A cancellation of the caller cancels all works and is raised; none is collected.

    >>> import asyncio
    >>> async def orders():
    ...     return ["order 17"]
    >>> async def offers():
    ...     raise ConnectionError("reset")
    >>> shown = asyncio.run(gather_all(orders, offers, on_failure="collect"))
    >>> shown.values, shown.failures
    ((['order 17'], None), {1: ConnectionError('reset')})
    """
    results: list[Any] = [None] * len(works)
    call = awaitable_of if on_failure == "cancel" else outcome_of

    async def run(results: list[Any], position: int, work: Any) -> None:
        try:
            function: Any = work if callable(work) else lambda: work
            results[position] = await call(function)
        finally:
            # From Python 3.12 on the traceback of a failure leads to this frame: no cycle.
            del results

    try:
        check_choice("on_failure", on_failure, "cancel", "collect")
        for work in works:
            if not callable(work) and not is_awaitable(work):
                raise TypeError(f"works must be coroutine functions or awaitables, got {work!r}")
        group = [partial(run, results, *each) for each in enumerate(works)]
        await run_group(group, "gather_all")
    finally:
        for work in works:
            if iscoroutine(work):  # it may not have started
                work.close()
    failures = {
        position: result.error for position, result in enumerate(results) if type(result) is Failed
    }
    log_failures("gather_all", failures, len(works))
    return Gathered(tuple(None if type(each) is Failed else each for each in results), failures)


@overload
async def process_many(
    items: Iterable[T] | AsyncIterable[T],
    work: Callable[[T], Awaitable[R]],
    *,
    concurrency: int,
    per_item_timeout: Seconds | None = None,
    on_failure: Literal["raise"] = "raise",
) -> tuple[R, ...]: ...


@overload
async def process_many(
    items: Iterable[T] | AsyncIterable[T],
    work: Callable[[T], Awaitable[R]],
    *,
    concurrency: int,
    per_item_timeout: Seconds | None = None,
    on_failure: Literal["collect"],
) -> Gathered: ...


async def process_many(
    items: Any,
    work: Any,
    *,
    concurrency: int,
    per_item_timeout: Seconds | None = None,
    on_failure: Literal["raise", "collect"] = "raise",
) -> tuple[Any, ...] | Gathered:
    """Call a coroutine function for each item, with a fixed number of tasks; asyncio or trio.

    :param items: an iterable or an async iterable, which is closed at the end.
    :param work: gets an item; its result is kept.
    :param concurrency: number of tasks that work, at least 1; one more reads the items.
    :param per_item_timeout: seconds for each item, above 0; None, the default: no limit.
    :param on_failure: ``"raise"``, the default: the first failure cancels the other tasks, and all
        failures are raised.  ``"collect"``: the other items are processed; failures are logged and
        returned.
    :return: the results in the order of the items; with ``"collect"`` a ``Gathered``.
    :raises ExceptionGroup: work failed, or *items* raised an exception; each failure of an item has
        a note with its position.
    :raises ValueError: a number is out of its range.

    The error of an item that exceeds its limit is a ``DeadlineExceededError`` of the kind
    ``"item"``.  Items that one task processes share its context variables.

    >>> import asyncio
    >>> async def fetch(order):
    ...     return f"order {order}"
    >>> asyncio.run(process_many([3, 1, 2], fetch, concurrency=2))
    ('order 3', 'order 1', 'order 2')
    """
    pool = Pool(
        "process_many",
        work,
        concurrency=concurrency,
        per_item_timeout=per_item_timeout,
        on_failure=on_failure,
        keep=True,
    )
    await pool.run(items)
    values = tuple(pool.values)
    return values if on_failure == "raise" else Gathered(values, pool.failures)
