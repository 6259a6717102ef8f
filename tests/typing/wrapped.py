"""Types of a wrapped function, method or object, for type checkers."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, assert_type

from retrytemplate import RetryTemplate, SimpleRetryPolicy, retryable

template = RetryTemplate()
bound = template.bind(label="typed")
patient = SimpleRetryPolicy(9)


@template.wrap
def fetch(url: str, *, limit: int = 10) -> bytes:
    return url.encode()[:limit]


@bound.wrap
async def fetch_async(url: str, *, limit: int = 10) -> bytes:
    return url.encode()[:limit]


@template.wrap
def lines(stop: int) -> Iterator[str]:
    yield from map(str, range(stop))


@template.wrap
async def lines_async(stop: int) -> AsyncIterator[str]:
    for number in range(stop):
        yield str(number)


@retryable(retry_on=OSError)
def read(path: str) -> int:
    return len(path)


class Service:
    @template.wrap
    def method(self, x: int) -> str:
        return str(x)

    @template.wrap
    async def method_async(self, x: int) -> str:
        return str(x)

    @classmethod
    @template.wrap
    def of_class(cls, x: int) -> str:
        return str(x)

    @staticmethod
    @template.wrap
    def of_nobody(x: int) -> str:
        return str(x)

    @property
    @template.wrap
    def size(self) -> int:
        return 1

    # The other way round too: the descriptor itself is wrapped.
    @template.wrap
    @classmethod
    def outside(cls, x: int) -> str:
        return str(x)

    @template.wrap
    @staticmethod
    def outside_of_nobody(x: int) -> str:
        return str(x)


class Adder:
    def __call__(self, one: int, two: int) -> int:
        return one + two


class Special(Service):
    def method(self, x: int) -> str:
        return super().method(x)


def other_templates() -> None:
    assert_type(fetch.retry_with(policy=patient)("page", limit=3), bytes)
    assert_type(fetch.retry_with(policy=patient).retry_with(name="pages")("page"), bytes)
    assert_type(lines.retry_with(policy=patient)(3), Iterator[str])
    assert_type(read.retry_with(policy=patient)("page"), int)
    assert_type(template.wrap(fetch, nested=True)("page"), bytes)
    assert_type(fetch.__wrapped__("page"), bytes)


async def other_templates_of_coroutines() -> None:
    assert_type(await fetch_async.retry_with(policy=patient)("page"), bytes)


def functions() -> None:
    assert_type(fetch("page"), bytes)
    assert_type(fetch("page", limit=3), bytes)
    assert_type(lines(3), Iterator[str])
    assert_type(lines_async(3), AsyncIterator[str])
    assert_type(template.wrap(Adder())(1, 2), int)
    assert_type(template.wrap(partial(fetch, "page"))(), bytes)
    given: Callable[[str], bytes] = fetch
    given("page")


async def coroutines() -> None:
    later: Coroutine[Any, Any, bytes] = fetch_async("page")
    assert_type(await later, bytes)
    assert_type(await fetch_async("page"), bytes)
    assert_type(await Service().method_async(1), str)
    async for line in lines_async(3):
        assert_type(line, str)


def methods() -> None:
    service = Service()
    assert_type(service.method(1), str)
    assert_type(Service.method(service, 1), str)
    assert_type(Service.of_class(1), str)
    assert_type(service.of_nobody(1), str)
    assert_type(service.size, int)
    assert_type(Service.outside(1), str)
    assert_type(Service.outside_of_nobody(1), str)


def mistakes_are_found() -> None:
    # Each line is wrong on purpose: a checker that no longer says so fails over the unused ignore.
    fetch(5)  # type: ignore[arg-type]
    fetch("page", size=3)  # type: ignore[call-arg]
    page = fetch("page")
    page.encode()  # type: ignore[attr-defined]
    fetch.retry_with(polcy=patient)  # type: ignore[call-arg]
    fetch.retry_with(policy=patient)(5)  # type: ignore[arg-type]
    Service().method.retry_with(policy=patient)  # type: ignore[attr-defined]
    Service().method("x")  # type: ignore[arg-type]
    Service().method()  # type: ignore[call-arg]
