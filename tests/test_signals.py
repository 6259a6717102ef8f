"""A signal at any of the library's own frames leaves no lock held and no execution open."""

import gc
from itertools import count
from types import SimpleNamespace

import pytest

from retrytemplate import (
    Guard,
    MemoryRetryContextCache,
    RetryError,
    RetryListener,
    RetryState,
    current_context,
)
from tests.support.runners import Script, in_async_block, in_asyncio, in_block, in_thread, made
from tests.support.signal_injection import OrdinarySignal, Signal, left_behind


class Balance(RetryListener):
    """Counts listeners that were opened and not closed."""

    opened = 0

    def open(self, context):
        self.opened += 1

    def close(self, context, exception):
        self.opened -= 1


IN_PLACE, RETHROWN = RetryState("key", rollback_for=()), RetryState("key")


def recovery(context):
    return "recovered"


TURNS = {
    "success": (lambda: ["value"], {"state": IN_PLACE}),
    "a failure in place": (lambda: [ValueError(), "value"], {"state": IN_PLACE}),
    "recovery": (lambda: [ValueError()], {"state": IN_PLACE, "recovery": recovery}),
    "a failure that is rethrown": (lambda: [ValueError()], {"state": RETHROWN}),
}


def cut(driver, turn, listener, signal, *, guards=(), **otherwise):
    """The remaining state after the signal."""
    script, how = TURNS[turn]
    contexts = MemoryRetryContextCache()
    listeners = [] if listener is None else [listener]
    template = made(2, name="n", cache=contexts, listeners=listeners, guards=guards)
    try:
        with signal:
            driver(template, Script(*script()), **how | otherwise)
    except (Signal, OrdinarySignal, RetryError, ValueError):
        pass
    if contexts._claims and "block" in driver.__name__:
        gc.collect()  # a block that is left between its turns ends with its loop
    left = {
        "the context": current_context() is not None,
        "the key": bool(contexts._claims),
        "a listener": listener is not None and listener.opened > 0,
    }
    return [f"{what} after {signal.where}" for what, stays in left.items() if stays]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize(
    ("driver", "listens"),
    [
        (in_thread, False),
        (in_thread, True),
        (in_asyncio, True),
        (in_block, True),
        (in_async_block, True),
    ],
)
def test_signal_anywhere_frees_the_key_and_calls_every_close(driver, listens, turn):
    def run(signal):
        return cut(driver, turn, Balance() if listens else None, signal)

    assert left_behind(run) == []


@pytest.mark.parametrize("guards", [[], [Guard()]], ids=["no guard", "a guard"])
@pytest.mark.parametrize("turn", TURNS)
def test_signal_without_a_key_calls_every_close(turn, guards):
    def run(signal):
        return cut(in_thread, turn, Balance(), signal, guards=guards, state=None)

    assert left_behind(run) == []


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("listens", [False, True])
def test_handler_that_raises_an_ordinary_exception_frees_the_key(listens, turn):
    def run(signal):
        return cut(in_thread, turn, Balance() if listens else None, signal)

    assert left_behind(run, OrdinarySignal) == []


def without_context(script):
    """The script as a callback that takes no argument."""
    attempts = count(1)
    return lambda: script(SimpleNamespace(attempt=next(attempts)))


def called(template, script, **how):
    return template.bind(**how).call(without_context(script))


def wrapped(template, script, **how):
    return template.bind(**how).wrap(without_context(script))()


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("driver", [in_thread, called, wrapped])
def test_signal_without_listeners_and_key_leaves_no_current_context(driver, turn):
    def run(signal):
        return cut(driver, turn, None, signal, state=None)

    assert left_behind(run) == []
