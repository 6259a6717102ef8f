"""The kit for context caches."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from attrs import evolve

from retrytemplate.caches.base import METHODS, Claim, RetryContextCache
from retrytemplate.caches.record import Record, to_json
from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    LeaseLostError,
    RecordedFailure,
    RetryError,
)
from retrytemplate.history import AttemptRecord
from retrytemplate.state import encode_key
from retrytemplate.testing.conformance.base import Conformance, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    # One of several concurrent sequences of calls: it yields calls, and is sent (value, error).
    Call = tuple[str, tuple[Any, ...], dict[str, Any]]
    Course = Generator[Call, tuple[Any, RetryError | None], Any]

__all__ = ["WORKERS", "CacheConformance"]

KEY = "charge/s:order-17"
LONG = 86_400.0
WORKERS = 8
ITERATIONS = 10

KEYS: tuple[Any, ...] = (
    *(1, "1", True, b"1", 0, False, "", b"", -1, 10**30, "True", "i:1"),
    *((), (1,), ("1",), ((1,),), (1, 2), ("1", 2), ("1,i:2",), ("a", "b"), ("a,s:b",)),
    *("a", "A", "a ", "\u00e4", "a\u0308", "%", "_", "*", "a/b", "a\\b", "a'b", "\u0000"),
    *("x" * 500, "x" * 501),
)
"""Keys of which no two may be taken for one."""


def rich_record() -> Record:
    """A record with a value in every field."""
    return Record(
        phase="idle",
        failures=2,
        attempts=2,
        retry_allowed=False,
        no_recovery=True,
        gave_up=True,
        max_attempts=5,
        last=RecordedFailure("httpx.ReadTimeout", "zu spät ⏰", RecordedFailure("OSError", "'\"")),
        history=(
            AttemptRecord(1, None, 1_767_225_600.25, "OSError", ""),
            AttemptRecord(2, 1.5, 2.5, "ValueError", "a\nb", "Traceback ...", "host", 4711),
        ),
        attributes={"ä": [1, 1.5, "x", None, True, {"deep": []}]},
        policy_state={"members": {"0": [1, True]}, "started": 0.1},
        backoff_state=[0.2, None],
        backoff_started=True,
        not_before=1_767_225_700.125,
        fingerprint="abc",
    )


class CacheConformance(Conformance):
    """Tests for a ``RetryContextCache``: claims exclude each other, records are kept.

    The tests whose names begin with ``test_concurrency`` use one cache from several threads.  A
    cache that is not thread-safe fails these.

    >>> from retrytemplate import MemoryRetryContextCache
    >>> class TestMine(CacheConformance):
    ...     def make(self):
    ...         return MemoryRetryContextCache()
    >>> TestMine().run_all()
    {}
    """

    @abstractmethod
    def make(self) -> Any:
        """An empty cache for at least 100 keys."""

    @contextmanager
    def opened(self) -> Iterator[RetryContextCache]:
        """A cache to be used from this thread, for the time of one test."""
        yield self.make()

    def at_once(self, cache: RetryContextCache, course: Callable[[int], Course]) -> list[Any]:
        """Run several courses of calls on one cache at the same time; what each returns."""
        return in_threads(lambda place: _follow(cache, course(place)), WORKERS)

    def _begin(self, cache: RetryContextCache, worker: str = "one", **options: Any) -> Claim:
        return cache.begin(KEY, worker=worker, **options)

    def _fail(self, cache: RetryContextCache, record: Record | None = None) -> Record:
        """One attempt that fails; the record that it leaves."""
        claim = self._begin(cache)
        record = _next(claim, record)
        cache.fail(claim, record)
        return record

    def _begin_and_end(self, cache: RetryContextCache, end: str) -> Claim:
        """One attempt, ended by this method of the cache."""
        claim = self._begin(cache)
        getattr(cache, end)(claim, *([_next(claim)] if end == "fail" else []))
        return claim

    # -- claims ----------------------------------------------------------------------------------

    def test_it_has_the_methods_of_a_cache(self) -> None:
        cache = self.make()
        assert isinstance(cache, RetryContextCache)
        assert not any(iscoroutinefunction(getattr(cache, name)) for name in METHODS)

    def test_an_unknown_key_has_no_record(self) -> None:
        with self.opened() as cache:
            assert KEY not in cache
            assert cache.peek(KEY) is None
            claim = self._begin(cache)
            assert (claim.key, claim.worker, claim.record) == (KEY, "one", None)
            assert (claim.version, claim.lost) == (0, None)
            assert cache.holds(claim)

    def test_a_key_is_held_from_the_beginning_of_an_attempt(self) -> None:
        with self.opened() as cache:
            self._begin(cache)
            error = _expect_error(AttemptInProgressError, lambda: self._begin(cache, "two"))
            assert error.worker == "one", f"it says that {error.worker!r} holds the key"
            assert error.lease_until is None or isinstance(error.lease_until, float | int)

    def test_a_key_with_failures_is_held_too(self) -> None:
        with self.opened() as cache:
            self._fail(cache)
            self._begin(cache)
            _expect_error(AttemptInProgressError, lambda: self._begin(cache, "two"))

    def test_the_holder_may_begin_its_next_attempt(self) -> None:
        with self.opened() as cache:
            first = self._begin(cache)
            second = self._begin(cache)
            assert second.fence > first.fence
            cache.fail(second, _next(second))

    def test_other_keys_are_free(self) -> None:
        with self.opened() as cache:
            self._begin(cache)
            assert cache.begin(KEY + "0", worker="two").record is None

    def test_every_attempt_is_counted_before_it_runs(self) -> None:
        with self.opened() as cache:
            fences = []
            for end in ("fail", "release", "succeed", "fail", "fail"):
                fences.append(self._begin_and_end(cache, end).fence)
            assert fences == sorted(set(fences)), f"the fence of a key only grows: {fences}"

    def test_a_fence_grows_where_the_key_was_forgotten_too(self) -> None:
        with self.opened() as cache:
            fences = []
            for _ in range(3):
                fences.append(self._begin_and_end(cache, "fail").fence)
                cache.forget(KEY)
            assert fences == sorted(set(fences)), f"the fence of a key only grows: {fences}"

    def test_a_lease_can_be_renewed(self) -> None:
        with self.opened() as cache:
            claim = self._begin(cache, lease=LONG)
            cache.renew(claim)
            assert cache.holds(claim)
            cache.fail(claim, _next(claim))

    # -- how a claim ends ------------------------------------------------------------------------

    def test_a_failure_is_found_by_the_next_attempt(self) -> None:
        with self.opened() as cache:
            record = self._fail(cache, rich_record())
            claim = self._begin(cache, "two")
            _same(claim.record, record)
            assert claim.version == record.version

    def test_failures_add_up(self) -> None:
        with self.opened() as cache:
            for failures in range(1, 6):
                claim = self._begin(cache, f"worker {failures}")
                known = 0 if claim.record is None else claim.record.failures
                cache.fail(claim, _next(claim, Record(failures=known + 1)))
                _check_failures(cache, failures)

    def test_a_failure_that_is_followed_in_place_keeps_the_key(self) -> None:
        with self.opened() as cache:
            claim = self._begin(cache)
            cache.fail(claim, _next(claim, Record(failures=1), held=True))
            _expect_error(AttemptInProgressError, lambda: self._begin(cache, "two"))
            cache.fail(claim, _next(claim, Record(failures=2)))
            claim = self._begin(cache, "two")
            assert claim.record is not None and claim.record.failures == 2

    def test_a_failure_can_be_looked_at(self) -> None:
        with self.opened() as cache:
            record = self._fail(cache, rich_record())
            _same(cache.peek(KEY), record)
            assert KEY in cache
            assert KEY + "0" not in cache

    def test_a_success_forgets_the_key(self) -> None:
        with self.opened() as cache:
            self._fail(cache)
            cache.succeed(self._begin(cache))
            assert KEY not in cache
            assert cache.peek(KEY) is None
            assert self._begin(cache, "two").record is None

    def test_a_remembered_success_is_not_done_again(self) -> None:
        with self.opened() as cache:
            self._fail(cache)
            cache.succeed(self._begin(cache), remember=LONG)
            _expect_error(AlreadyCompletedError, lambda: self._begin(cache))
            _expect_error(AlreadyCompletedError, lambda: self._begin(cache, "two"))

    def test_success_after_recovery_phase_forgets_the_key(self) -> None:
        with self.opened() as cache:
            claim = self._begin(cache)
            cache.fail(claim, _next(claim, Record(phase="recovering", failures=1), held=True))
            cache.succeed(claim)
            assert self._begin(cache, "two").record is None

    def test_record_of_a_completed_key_is_found_without_an_attempt(self) -> None:
        with self.opened() as cache:
            claim = self._begin(cache)
            kept = _next(claim, evolve(rich_record(), phase="done"))
            cache.succeed(claim, remember=LONG, record=kept)
            _expect_error(AlreadyCompletedError, lambda: self._begin(cache, "two"))
            cache.release(self._begin(cache, "two", fresh=True))
            found = cache.peek(KEY)
            assert found is not None and KEY in cache
            assert (found.phase, found.attributes) == ("done", kept.attributes)
            cache.succeed(self._begin(cache, fresh=True))
            assert cache.peek(KEY) is None

    def test_an_invalid_connection_is_rejected(self) -> None:
        with self.opened() as cache:
            claim = self._begin(cache)
            try:
                cache.succeed(claim, connection=object())
            except Exception:
                return  # MisuseError, if the cache uses no connection
        raise AssertionError("succeed() ignores connection: raise MisuseError, or use it")

    def test_a_release_leaves_a_new_key_unknown(self) -> None:
        with self.opened() as cache:
            cache.release(self._begin(cache))
            assert KEY not in cache
            assert self._begin(cache, "two").record is None

    def test_a_release_leaves_the_failures_as_they_were(self) -> None:
        with self.opened() as cache:
            record = self._fail(cache, rich_record())
            cache.release(self._begin(cache))
            _same(cache.peek(KEY), record)
            _same(self._begin(cache, "two").record, record)

    def test_forgetting_drops_everything_under_a_key(self) -> None:
        with self.opened() as cache:
            cache.forget(KEY)
            self._fail(cache)
            cache.forget(KEY)
            assert KEY not in cache
            cache.succeed(self._begin(cache), remember=LONG)
            cache.forget(KEY)
            self._begin(cache)
            cache.forget(KEY)
            assert self._begin(cache, "two").record is None

    def test_a_fresh_start_forgets_failures_and_remembered_success(self) -> None:
        with self.opened() as cache:
            self._fail(cache)
            claim = self._begin(cache, fresh=True)
            assert claim.record is None
            cache.succeed(claim, remember=LONG)
            assert self._begin(cache, fresh=True).record is None

    def test_release_of_a_fresh_start_keeps_the_record(self) -> None:
        with self.opened() as cache:
            record = self._fail(cache, rich_record())
            cache.release(self._begin(cache, fresh=True))
            _same(cache.peek(KEY), record)
            cache.succeed(self._begin(cache), remember=LONG)
            cache.release(self._begin(cache, fresh=True))
            _expect_error(AlreadyCompletedError, lambda: self._begin(cache))

    def test_failure_of_a_fresh_start_replaces_the_record(self) -> None:
        with self.opened() as cache:
            cache.succeed(self._begin(cache), remember=LONG)
            claim = self._begin(cache, fresh=True)
            cache.fail(claim, record := _next(claim, rich_record()))
            _same(self._begin(cache).record, record)

    def test_a_fresh_start_does_not_take_a_key_that_is_held(self) -> None:
        with self.opened() as cache:
            self._begin(cache)
            _expect_error(AttemptInProgressError, lambda: self._begin(cache, "two", fresh=True))

    # -- claims that do not count any more -------------------------------------------------------

    def test_a_claim_that_another_has_taken_over_writes_nothing(self) -> None:
        with self.opened() as cache:
            old = self._begin(cache)
            cache.forget(KEY)
            new = self._begin(cache, "two")
            self._is_over(cache, old)
            assert cache.holds(new)
            cache.fail(new, record := _next(new, rich_record()))
            _same(cache.peek(KEY), record)

    def test_a_claim_that_has_ended_writes_nothing(self) -> None:
        with self.opened() as cache:
            for end in ("fail", "succeed", "release"):
                claim = self._begin_and_end(cache, end)
                kept = cache.peek(KEY)
                self._is_over(cache, claim)
                _same(cache.peek(KEY), kept)

    def test_a_forgotten_claim_writes_nothing(self) -> None:
        with self.opened() as cache:
            claim = self._begin(cache)
            cache.forget(KEY)
            self._is_over(cache, claim)
            assert KEY not in cache

    def _is_over(self, cache: RetryContextCache, claim: Claim) -> None:
        assert not cache.holds(claim)
        _expect_error(LeaseLostError, lambda: cache.renew(claim))
        _expect_error(LeaseLostError, lambda: cache.fail(claim, _next(claim, Record(failures=99))))
        _expect_error(LeaseLostError, lambda: cache.succeed(claim))
        _expect_error(LeaseLostError, lambda: cache.succeed(claim, remember=LONG))
        cache.release(claim)

    # -- keys and shared records -----------------------------------------------------------------

    def test_keys_that_differ_in_value_or_type_are_different_keys(self) -> None:
        with self.opened() as cache:
            for number, key in enumerate(KEYS):
                claim = cache.begin("charge/" + encode_key(key), worker="one")
                assert claim.record is None, f"{key!r} is taken for another key"
                cache.fail(claim, _next(claim, Record(failures=number + 1)))
            for number, key in enumerate(KEYS):
                kept = cache.peek("charge/" + encode_key(key))
                assert kept is not None and kept.failures == number + 1, f"{key!r} was overwritten"

    def test_a_shared_record_is_written_on_the_version_that_was_read(self) -> None:
        with self.opened() as cache:
            first = evolve(rich_record(), version=1)
            assert cache.swap(KEY, first, 0) is True
            _same(cache.peek(KEY), first)
            assert cache.swap(KEY, evolve(first, version=2, failures=3), 1) is True
            kept = cache.peek(KEY)
            assert kept is not None and (kept.version, kept.failures) == (2, 3)

    def test_a_shared_record_is_not_written_on_another_version(self) -> None:
        with self.opened() as cache:
            assert cache.swap(KEY, Record(version=2), 1) is False
            assert KEY not in cache
            assert cache.swap(KEY, Record(version=1), 0) is True
            assert cache.swap(KEY, Record(version=1, failures=9), 0) is False
            assert cache.swap(KEY, Record(version=8, failures=9), 7) is False
            _check_failures(cache, 0)

    # -- concurrency -----------------------------------------------------------------------------

    def test_concurrency_one_of_several_gets_a_key(self) -> None:
        def course(place: int) -> Course:
            return (yield "begin", (KEY,), {"worker": f"worker {place}"})

        with self.opened() as cache:
            for _ in range(ITERATIONS):
                replies = self.at_once(cache, course)
                claims = [claim for claim, error in replies if error is None]
                assert len(claims) == 1, f"{len(claims)} of {WORKERS} hold the key at once"
                errors = {type(error) for _, error in replies if error is not None}
                assert errors == {AttemptInProgressError}, f"got {errors}"
                cache.release(claims[0])

    def test_concurrency_no_failure_is_lost(self) -> None:
        def course(place: int) -> Course:
            failed = 0
            while failed < ITERATIONS:
                claim, error = yield "begin", (KEY,), {"worker": f"worker {place}"}
                if error is None:
                    known = 0 if claim.record is None else claim.record.failures
                    record = _next(claim, Record(failures=known + 1))
                    _, error = yield "fail", (claim, record), {}
                    failed += 1
                if error is not None and not isinstance(error, AttemptInProgressError):
                    raise error

        with self.opened() as cache:
            self.at_once(cache, course)
            _check_failures(cache, WORKERS * ITERATIONS)

    def test_concurrency_no_change_of_a_shared_record_is_lost(self) -> None:
        def course(place: int) -> Course:
            changed = 0
            while changed < ITERATIONS:
                record, _ = yield "peek", (KEY,), {}
                known = Record(version=0) if record is None else record
                fresh = evolve(known, version=known.version + 1, failures=known.failures + 1)
                written, _ = yield "swap", (KEY, fresh, known.version), {}
                changed += written

        with self.opened() as cache:
            self.at_once(cache, course)
            _check_failures(cache, WORKERS * ITERATIONS)

    def test_concurrency_keys_do_not_disturb_each_other(self) -> None:
        def course(place: int) -> Course:
            for failures in range(ITERATIONS):
                claim, error = yield "begin", (f"{KEY}/{place}",), {"worker": f"worker {place}"}
                assert error is None, f"its own key is rejected: {error!r}"
                assert failures == (0 if claim.record is None else claim.record.failures)
                yield "fail", (claim, _next(claim, Record(failures=failures + 1))), {}

        with self.opened() as cache:
            self.at_once(cache, course)


def _follow(cache: RetryContextCache, course: Course) -> Any:
    reply: tuple[Any, RetryError | None] | None = None
    try:
        while True:
            name, args, kwargs = course.send(reply)  # type: ignore[arg-type]  # None begins it
            try:
                reply = getattr(cache, name)(*args, **kwargs), None
            except RetryError as error:
                reply = None, error
    except StopIteration as end:
        return end.value


def _next(claim: Claim, record: Record | None = None, *, held: bool = False) -> Record:
    """The record that a failing attempt leaves under this claim."""
    return evolve(
        Record(failures=1, attempts=1) if record is None else record,
        version=claim.version + 1,
        fence=claim.fence,
        worker=claim.worker if held else None,
    )


def _check_failures(cache: RetryContextCache, expected: int) -> None:
    """Raise unless the key has a record with this number of failures."""
    kept = cache.peek(KEY)
    assert kept is not None and kept.failures == expected, f"kept {kept}"


def _same(found: Record | None, expected: Record | None) -> None:
    """Raise unless both records are equal; failures are compared by their text."""
    before = None if expected is None else to_json(expected)
    after = None if found is None else to_json(found)
    assert after == before, f"{after} instead of {before}"


def _expect_error(kind: type[RetryError], call: Callable[[], Any]) -> Any:
    """The error of the expected kind; any other end fails the test."""
    try:
        done = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; the call returned {done!r}")
