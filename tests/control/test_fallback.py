"""A fallback: the function that supplies the result, and the error if all fail."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from retrytemplate import (
    CircuitOpenError,
    MisuseError,
    RetryTemplate,
    SimpleRetryPolicy,
    UnacceptableResultError,
)
from retrytemplate.control import (
    CircuitBreaker,
    Consecutive,
    ControlListener,
    Fallback,
    FallbackUsed,
    PrimaryAnswered,
    Strategy,
)
from retrytemplate.testing import VirtualClock
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import left_by


class Down(Exception):
    """The error of the primary."""


class Missing(LookupError):
    """The error of the cache."""


def primary(city):
    raise Down(city)


def cached(city):
    if city != "Rome":
        raise Missing(city)
    return 31


def default(city):
    return "not known at the moment"


@pytest.mark.statement("S4-45")
def test_links_are_called_in_order_and_the_first_result_is_used():
    weather = Fallback(cached, default)
    assert weather.call(str.upper, "rome") == "ROME"
    assert weather.call(primary, "Rome") == 31
    assert weather.call(primary, "Oslo") == "not known at the moment"
    assert weather.counts() == {"primary": 1, "cached": 1, "default": 1}


@pytest.mark.statement("S4-47")
def test_outcome_names_its_source():
    weather = Fallback(cached, default)
    own = weather.outcome(str.upper, "rome")
    assert (own.source, own.used_fallback, own.attempts) == ("primary", False, 1)
    other = weather.outcome(primary, "Oslo")
    assert (other.source, other.used_fallback, other.attempts) == ("default", True, 3)
    assert [type(each) for each in other.failures] == [Down, Missing]


@pytest.mark.statement("S4-45")
def test_first_failure_is_raised_with_the_others_when_all_fail():
    with pytest.raises(Down) as raised:
        Fallback(cached, lambda city: 1 / 0).call(primary, "Oslo")
    error = raised.value
    assert [type(each) for each in error.__cause__.exceptions] == [Missing, ZeroDivisionError]
    assert error.__notes__ == [
        "the fallback 'cached' failed, too: Missing: Oslo",
        "the fallback '<lambda>' failed, too: ZeroDivisionError: division by zero",
    ]


def test_existing_cause_is_kept_and_no_failure_is_its_own_cause():
    failure = Down()
    failure.__cause__ = cause = KeyError()

    def fails(*_):
        raise failure

    with pytest.raises(Down) as raised:
        Fallback(fails, cached).call(fails, "Oslo")
    first, second = raised.value.__cause__.exceptions
    assert (first, type(second)) == (cause, Missing)


def test_failure_outside_of_on_is_raised_immediately():
    queries = Counter()

    def counted(city):
        queries["link"] += 1

    weather = Fallback(counted, on=(ConnectionError,))
    with pytest.raises(Down):
        weather.call(primary, "Rome")
    outcome = weather.outcome(primary, "Rome")
    assert (type(outcome.exception), outcome.source, outcome.attempts) == (Down, None, 1)
    assert not queries


def odd(exc):
    raise ZeroDivisionError


async def primary_async(city):
    raise Down(city)


def test_predicate_that_raises_ends_the_call_with_the_failure_as_cause():
    weather = Fallback(default, on=odd)
    for outcome in (
        weather.outcome(primary, "Rome"),
        asyncio.run(weather.outcome_async(primary_async, "Rome")),
    ):
        assert type(outcome.exception) is ZeroDivisionError
        assert type(outcome.exception.__cause__) is Down
        assert (outcome.attempts, outcome.source, outcome.failures) == (1, None, ())


def test_error_of_a_predicate_keeps_its_cause_inside_a_handler():
    with pytest.raises(ZeroDivisionError) as raised:
        try:
            raise KeyError
        except KeyError:
            Fallback(default, on=odd).call(primary, "Rome")
    assert type(raised.value.__cause__) is Down


@pytest.mark.parametrize("end", [KeyboardInterrupt, MisuseError])
def test_base_exception_of_a_predicate_passes(end):
    def ends(exc):
        raise end

    with pytest.raises(end):
        Fallback(default, on=ends).outcome(primary, "Rome")


@pytest.mark.parametrize("end", [KeyboardInterrupt, asyncio.CancelledError, MisuseError])
def test_base_exception_is_never_replaced(end):
    def ends(city):
        raise end

    with pytest.raises(end):
        Fallback(default).call(ends, "Rome")
    with pytest.raises(end):
        Fallback(ends, default).outcome(primary, "Rome")


@pytest.mark.statement("S4-46")
def test_every_result_must_be_acceptable():
    weather = Fallback(lambda city: "", default, accept=bool)
    outcome = weather.outcome(lambda city: None, "Rome")
    assert outcome.value == "not known at the moment"
    assert [type(each) for each in outcome.failures] == [UnacceptableResultError] * 2


@pytest.mark.statement("S4-31")
@pytest.mark.statement("S4-39")
def test_fallback_covers_failures_and_the_open_circuit():
    breaker = CircuitBreaker("weather", window=Consecutive(2), clock=VirtualClock())
    guarded, answered = breaker.wrap(primary), Fallback(default)
    outcomes = [answered.outcome(guarded, "Rome") for _ in range(3)]
    assert [type(each.failures[0]) for each in outcomes] == [Down, Down, CircuitOpenError]
    assert all(each.source == "default" for each in outcomes)


@pytest.mark.statement("S4-39")
@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_asynchronous_link_is_awaited(loop):
    async def down(city):
        await loop.checkpoint()
        raise Down(city)

    async def other(city):
        await loop.checkpoint()
        return f"{city}, from elsewhere"

    async def main():
        weather = Fallback(cached, other)
        outcome = await weather.outcome_async(down, "Oslo")
        assert outcome.source == "other"
        assert await weather.wrap(down)("Rome") == 31
        return await weather.call_async(primary, "Oslo")

    assert loop.run(main) == "Oslo, from elsewhere"


def test_awaitable_result_is_rejected_in_a_synchronous_fallback():
    async def other(city):
        """Not awaited."""

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        Fallback(other).call(primary, "Rome")
    with pytest.raises(TypeError, match=r"the fallback .* is asynchronous, but .* is synchronous"):
        Fallback(other).wrap(primary)


def test_link_has_its_own_guards():
    calls = Counter()

    @RetryTemplate(SimpleRetryPolicy(3)).wrap
    def other(city):
        calls["other"] += 1
        if calls["other"] < 3:
            raise Missing
        return "at the third attempt"

    assert Fallback(other).call(primary, "Rome") == "at the third attempt"
    assert Fallback(other).outcome(primary, "Rome").source == "other"


def test_fallback_is_reported_and_a_failing_listener_changes_nothing():
    events = []

    class Listens(ControlListener):
        def on_event(self, event):
            events.append(event)
            raise ZeroDivisionError

    weather = Fallback(cached, name="weather", listeners=[Listens()])
    weather.call(str.upper, "rome")
    weather.call(primary, "Rome")
    weather.outcome(primary, "Oslo")
    answered, *used = events
    assert answered == PrimaryAnswered(name="weather")
    assert [(type(each), each.name, each.source) for each in used] == [
        (FallbackUsed, "weather", "cached"),
        (FallbackUsed, "weather", None),
    ]
    assert all(type(each.error) is Down for each in used)


def test_fallback_is_a_strategy_and_keeps_the_name_of_the_function():
    weather = Fallback(default)
    assert isinstance(weather, Strategy)
    assert weather.wrap(primary).__name__ == "primary"
    assert weather.wrap(primary)("Rome") == "not known at the moment"


def test_elapsed_time_is_measured():
    clock = VirtualClock()

    def slow(city):
        clock.advance(3)
        raise Down

    assert Fallback(default, clock=clock).outcome(slow, "Rome").elapsed == 3


def ends(city):
    raise KeyboardInterrupt


@pytest.mark.parametrize("link", [default, cached, ends])
@pytest.mark.parametrize("on", [Exception, Missing, odd])
def test_call_leaves_no_cycle(link, on):
    weather = Fallback(link, on=on)

    def call():
        with suppress(Down, KeyboardInterrupt, ZeroDivisionError):
            weather.call(primary, "Oslo")
        with suppress(Down, KeyboardInterrupt, ZeroDivisionError, StopIteration):
            weather.call_async(primary_async, "Oslo").send(None)

    assert left_by(call) == 0


class Odd(Exception):
    """An exception that raises at every attribute access."""

    def fails(self, *_):
        raise ZeroDivisionError

    __eq__ = __bool__ = __str__ = __repr__ = fails
    __hash__ = Exception.__hash__


def test_unusual_exception_classes_are_handled():
    def odd(city):
        raise Odd

    def missing(city):
        raise Missing

    outcome = Fallback(missing, on=Odd).outcome(odd, "Rome")
    assert (type(outcome.exception), outcome.attempts) == (Missing, 2)
    outcome = Fallback(odd, odd).outcome(odd, "Rome")
    assert (type(outcome.exception), outcome.attempts) == (Odd, 3)
    outcome = Fallback(default, accept=lambda answer: isinstance(answer, str)).outcome(Odd, "Rome")
    assert (outcome.value, outcome.attempts) == (default("Rome"), 2)


def test_link_may_have_the_name_of_the_primary():
    def primary(city):
        return "from elsewhere"

    assert Fallback(primary).outcome(globals()["primary"], "Rome").used_fallback
    assert not Fallback(default).outcome(primary, "Rome").used_fallback
    assert not Fallback(cached).outcome(cached, "Oslo").used_fallback


@pytest.mark.parametrize(
    ("links", "given", "problem"),
    [
        ((), {}, "at least one fallback function"),
        ((17,), {}, "takes fallback functions, got 17"),
        ((dict,), {}, "takes fallback functions"),
        ((default,), {"on": 17}, "17"),
        ((default,), {"accept": 17}, "accept must be callable"),
        ((default,), {"name": ""}, "name must be a non-blank str"),
        ((default,), {"listeners": [17]}, "listeners"),
        ((default,), {"clock": 17}, "clock must"),
    ],
)
def test_fallback_with_wrong_settings_is_rejected(links, given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Fallback(*links, **given)


@pytest.mark.parametrize("setting", ["fallbacks", "on", "accept", "name", "listeners"])
def test_setting_of_a_fallback_cannot_be_assigned(setting):
    fallback = Fallback(default)
    with pytest.raises(AttributeError, match=rf"{setting} of a Fallback .*; make another Fallback"):
        setattr(fallback, setting, None)
