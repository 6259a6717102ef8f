"""Helpers of all kits."""

from __future__ import annotations

import gc
import json
import reprlib
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from retrytemplate.errors import AttemptLostError, UnacceptableResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "Conformance",
    "FrozenConformance",
    "Probe",
    "as_json",
    "check_frozen",
    "check_releases_exception",
    "check_same",
    "in_threads",
    "json_round_trip",
    "unchanged",
]

THREAD_REPETITIONS = 5

JOIN_TIMEOUT = 30.0
"""Real seconds after which a running thread is reported as stuck."""


class Probe(Exception):
    """An exception whose release can be observed."""


class Conformance(ABC):
    """The tests of one kind of plug-in; each test creates its own objects.

    ``failures_to_try`` are the exceptions that are passed to the object.  Add those that yours
    handles differently.
    """

    failures_to_try: ClassVar[Sequence[BaseException]] = (
        ValueError("wrong"),
        ConnectionResetError(104, "reset by peer"),
        TimeoutError(),
        KeyError("missing"),
        RuntimeError("from a cause"),
        ExceptionGroup("several", [OSError("one"), ValueError("two")]),
        AttemptLostError("the worker crashed", worker="other"),
        UnacceptableResultError("not this value", 202),
    )

    @abstractmethod
    def make(self) -> Any:
        """A new object, equal to every other that this returns."""

    @classmethod
    def names_of_tests(cls) -> list[str]:
        """The names of the tests in this kit."""
        return [name for name in dir(cls) if name.startswith("test_") and getattr(cls, name)]

    def run_all(self) -> dict[str, Exception]:
        """Run every test; return the errors of those that failed by the test's name."""
        failed: dict[str, Exception] = {}
        for name in self.names_of_tests():
            try:
                getattr(self, name)()
            except Exception as error:
                failed[name] = error
        return failed


def check_same(found: Any, expected: Any, message: str) -> None:
    """Raise unless both are equal; pytest takes a minute to compare long lists."""
    if found != expected:
        raise AssertionError(f"{message}: {_first_difference(found, expected)}")


def _first_difference(found: Any, expected: Any) -> str:
    place = ""
    while isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        at, (found, expected) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        place += f"[{at}]"
    where = f"at {place} " if place else ""
    return f"{where}{reprlib.repr(found)} instead of {reprlib.repr(expected)}"


def as_json(value: Any) -> str:
    """The value as JSON text; any other value fails the test."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"state must be a JSON value, got {value!r}: {error}") from None
    back = json.loads(text)
    assert back == value and _same_types(value, back), (
        f"state must be unchanged after a round trip through JSON: {value!r} became {back!r}"
    )
    return text


def _same_types(value: Any, back: Any) -> bool:
    """Whether the types are equal too, where ``==`` ignores them: 1 and True, 1 and 1.0."""
    if type(value) is not type(back):
        return False
    if isinstance(value, dict):
        return all(_same_types(each, back[key]) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_same_types, value, back))
    return True


def json_round_trip(value: Any) -> Any:
    """The value after a round trip through JSON, as another process reads it."""
    return json.loads(as_json(value))


def attributes_of(piece: Any) -> dict[str, Any]:
    """The attributes of an object, whether in its ``__dict__`` or in slots."""
    names: list[str] = list(getattr(piece, "__dict__", ()))
    for kind in type(piece).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    names = [name for name in names if not name.startswith("__")]
    return {name: getattr(piece, name) for name in names if hasattr(piece, name)}


def check_frozen(piece: Any) -> None:
    """Raise if an attribute can be replaced."""
    for name, value in attributes_of(piece).items():
        try:
            setattr(piece, name, value)
        except (AttributeError, TypeError):
            continue
        raise AssertionError(
            f"{type(piece).__name__}.{name} can be replaced: all threads share one object, so "
            "make it frozen (attrs.frozen, dataclass(frozen=True))"
        )


@contextmanager
def unchanged(piece: Any) -> Iterator[None]:
    """Raise if the block changes the object."""
    before = {name: repr(value) for name, value in attributes_of(piece).items()}
    yield
    after = {name: repr(value) for name, value in attributes_of(piece).items()}
    assert after == before, f"using {type(piece).__name__} changed its attributes"


def in_threads(work: Callable[[int], Any], number: int = 8) -> list[Any]:
    """The results of *work* in several threads that start together and switch often."""
    barrier = threading.Barrier(number)
    results: list[Any] = [AssertionError("stuck")] * number

    def one(place: int) -> None:
        try:
            barrier.wait(JOIN_TIMEOUT)
        except threading.BrokenBarrierError:  # another thread could not start
            return
        try:
            results[place] = work(place)
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(number)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        until = time.monotonic() + JOIN_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
    except BaseException:  # an interrupt: release the threads that wait for others to start
        barrier.abort()
        raise
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads), "a thread is stuck"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def check_releases_exception(use: Callable[[BaseException], Any], name: str) -> None:
    """Raise if *use* keeps a reference to a failure."""
    failure = Probe("let go of me")
    seen = weakref.ref(failure)
    kept = use(failure)
    del failure
    gc.collect()
    assert seen() is None, f"{name} keeps the exception alive, and the frames of its traceback"
    del kept


class FrozenConformance(Conformance):
    """The tests of a frozen object that all threads share."""

    @abstractmethod
    def _results(self, piece: Any, /) -> Any:
        """All results of the object that the kit compares."""

    @abstractmethod
    def _use(self, piece: Any, failure: BaseException, /) -> Any:
        """Pass one failure to the object; the result."""

    def test_it_is_frozen(self) -> None:
        check_frozen(self.make())

    def test_use_leaves_it_as_it_was(self) -> None:
        piece = self.make()
        with unchanged(piece):
            self._results(piece)

    def test_threads_share_it(self) -> None:
        piece = self.make()
        expected = [self._results(self.make())] * THREAD_REPETITIONS

        def work(thread: int) -> list[Any]:
            return [self._results(piece) for _ in range(THREAD_REPETITIONS)]

        for results in in_threads(work):
            check_same(results, expected, "the results differ between threads")

    def test_it_lets_go_of_failures(self) -> None:
        piece = self.make()
        check_releases_exception(partial(self._use, piece), type(piece).__name__)
