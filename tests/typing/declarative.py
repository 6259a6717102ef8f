"""What the type checkers see of declarative retry; read by them, never run."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import assert_type

from retrytemplate import (
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    RetryState,
    RetryTemplate,
    intercept,
    recover,
    retryable,
)

guard = retryable(retry_on=(ConnectionError,))


@guard
def plain(number: int, *, name: str = "") -> float:
    return float(number)


@retryable(retry_on=OSError, recover=lambda error, number: 0.0)
async def asynchronous(number: int) -> float:
    return float(number)


@retryable(policy=MaxAttemptsRetryPolicy(2), key=lambda number: RetryState(number))
def generator(number: int) -> Iterator[int]:
    yield number


@retryable(template=RetryTemplate(), label="items")
async def asynchronous_generator(number: int) -> AsyncIterator[int]:
    yield number


async def checks_of_functions() -> None:
    assert_type(plain(1, name="a"), float)
    assert_type(await asynchronous(1), float)
    assert_type(generator(1), Iterator[int])
    assert_type(asynchronous_generator(1), AsyncIterator[int])
    exact: Callable[[int], Iterator[int]] = generator
    exact(1)
    plain("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain(1, other="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Service:
    @guard
    def call(self, item: str) -> int:
        return len(item)

    @guard
    async def call_later(self, item: str) -> int:
        return len(item)

    @guard
    @classmethod
    def make(cls, item: str) -> "Service":
        return cls()

    @guard
    @staticmethod
    def count(item: str) -> int:
        return len(item)

    @recover
    def recovered(self, error: ConnectionError, item: str) -> int:
        return 0


@retryable(retry_on=OSError)
class Whole:
    def call(self, item: str) -> int:
        return len(item)


async def checks_of_classes() -> None:
    service = Service()
    assert_type(service.call("tea"), int)
    assert_type(await service.call_later("tea"), int)
    assert_type(Service.make("tea"), Service)
    assert_type(Service.count("tea"), int)
    assert_type(service.recovered(ConnectionError(), "tea"), int)
    assert_type(Whole().call("tea"), int)
    service.call(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(intercept(service, r"call.*", RetryTemplate()), Service)
    assert_type(intercept(service, r"call.*", RetryTemplate().bind(label="x")), Service)
    intercept(service, r"call.*", 17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def checks_of_settings() -> None:
    retryable(retry_on=lambda error: "busy" in str(error), max_attempts=lambda: 3)
    retryable(retry_on=OSError, backoff=FixedBackoff(1.0), listeners=[])
    retryable(retry_on="OSError")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    retryable(plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
