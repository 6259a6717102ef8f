"""A signal in the library's own frames: wherever it cuts in, nothing stays held or open."""

import dis
import gc
import os
import random
import sys
from functools import cache
from pathlib import Path
from threading import Thread

import pytest

import retrytemplate
from retrytemplate import MemoryRetryContextCache, RetryListener, RetryState, current_context
from tests.ways import Script, in_async_block, in_asyncio, in_block, in_thread, made

LIBRARY = Path(retrytemplate.__file__).parent
# After these the interpreter looks whether a signal has come.
LOOKS = ("RESUME", "CALL_FUNCTION_EX")
CALLS = ("CALL", "CALL_KW")  # ... where it leads out of Python code


class Signal(BaseException):
    """What a handler raises."""


class CutsIn:
    """Raises the signal where the interpreter looks for one the n-th time in library code."""

    def __init__(self, number):
        self.number, self.looks, self.where = number, 0, None
        self.last = {}  # the instruction before, of each frame

    def __call__(self, frame, event, argument):
        if not is_ours(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        if event == "call" and frame.f_back in self.last:
            self.last[frame.f_back] = ""  # the call led into Python code
        elif event == "return":
            self.last.pop(frame, None)
        elif event == "opcode":
            before = self.last.get(frame, "")
            self.last[frame] = names(frame.f_code)[frame.f_lasti]
            if before in CALLS or before in LOOKS or "JUMP_BACKWARD" in before:
                self.looks += 1
                if self.looks >= self.number and not in_finalizer(frame):
                    self.number = sys.maxsize  # once
                    self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    raise Signal
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(self.before)
        self.last.clear()


@cache
def is_ours(code):
    """Whether it is library code that drives executions."""
    path = Path(code.co_filename)
    return path.is_relative_to(LIBRARY) and not path.is_relative_to(LIBRARY / "testing")


def in_finalizer(frame):
    """Whether what is raised here goes nowhere."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@cache
def names(code):
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Balance(RetryListener):
    """Counts who was opened and not closed."""

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


def cut(way, turn, listener, signal):
    """What is left behind once the signal has cut in."""
    script, how = TURNS[turn]
    contexts = MemoryRetryContextCache()
    listeners = [] if listener is None else [listener]
    template = made(2, name="n", cache=contexts, listeners=listeners)
    try:
        with signal:
            way(template, Script(*script()), **how)
    except (Signal, ValueError):
        pass
    if contexts._claims and "block" in way.__name__:
        gc.collect()  # a block that is left between its turns ends with its loop
    left = {
        "the context": current_context() is not None,
        "the key": bool(contexts._claims),
        "a listener": listener is not None and listener.opened > 0,
    }
    return [f"{what} after {signal.where}" for what, stays in left.items() if stays]


# One look in so many; which ones, is left to chance.
STRIDE = 1 if os.environ.get("RETRYTEMPLATE_TEST_EVERY_WAY") else 3


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize(
    ("way", "listens"),
    [
        (in_thread, False),
        (in_thread, True),
        (in_asyncio, True),
        (in_block, True),
        (in_async_block, True),
    ],
)
def test_a_signal_anywhere_frees_the_key_and_closes_what_was_opened(way, listens, turn):
    def after(number):
        listener, signal = Balance() if listens else None, CutsIn(number)
        left = []
        # In a thread of its own: a trace function that raises may leave the interpreter thinking
        # that an exception is being handled.
        thread = Thread(target=lambda: left.extend(cut(way, turn, listener, signal)))
        thread.start()
        thread.join()
        return left, signal.looks

    for _ in range(2):  # the first one makes the code ready to be traced
        left, looks = after(sys.maxsize)
    assert looks > 10
    for number in range(1 + random.randrange(STRIDE), looks + 1, STRIDE):
        left += after(number)[0]
    assert left == []
