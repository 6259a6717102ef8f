"""A signal at any frame of a kill switch leaves no lock held and no guard current."""

import asyncio
import gc
from contextlib import suppress
from threading import Thread

import pytest

from retrytemplate.control import KillSwitch, _enclosing
from tests.control.switch.shared import Recorded, SharedStore, stopped
from tests.support.signal_injection import Signal, left_behind

WELL = {"by": "lee", "justification": "found and mended, see incident 9"}


def call(guard):
    guard.call(int, "17")


class Ready:
    """Can be awaited, and is ready at once; it need not be awaited."""

    def __await__(self):
        yield from ()


def call_async(guard):
    asyncio.run(guard.call_async(Ready))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("driver", [call, call_async])
def test_guard_is_left_after_a_signal(driver):
    guard = KillSwitch().guard(segment="billing")

    def run(signal):
        with suppress(Signal), signal:
            driver(guard)
        gc.collect()  # unawaited coroutines are reported here
        return [signal.where] if _enclosing._enclosing_guards() else []

    assert left_behind(run) == []


def command(switch):
    stopped(switch)
    switch.resume(segment="billing", **WELL)


def check(switch):
    switch.check(segment="billing")


@pytest.mark.parametrize("work", [command, check])
def test_other_threads_continue_after_a_signal(work):
    def run(signal):
        switch = KillSwitch(
            SharedStore(), 0.0, listeners=[Recorded()], notifiers=[lambda record: None]
        )
        with suppress(Signal), signal:
            work(switch)
        other = Thread(target=command, args=(switch,), daemon=True)
        other.start()
        other.join(10)
        switch.close()
        return [signal.where] if other.is_alive() else []

    assert left_behind(run) == []
