"""A signal that interrupts at any of the library's own frames."""

import dis
import gc
import os
import random
import signal
import sys
import time
from functools import cache
from pathlib import Path
from threading import Lock, Thread, main_thread

import retrytemplate

__all__ = ["CutsIn", "InterruptsOnly", "OrdinarySignal", "Signal", "left_behind"]

LIBRARY = Path(retrytemplate.__file__).parent
# After these the interpreter looks whether a signal has come.
LOOKS = ("RESUME", "CALL_FUNCTION_EX")
CALLS = ("CALL", "CALL_KW")  # ... where it leads out of Python code
# One check of STRIDE, selected at random.
STRIDE = 1 if os.environ.get("RETRYTEMPLATE_TEST_EXHAUSTIVE") else 3


class Signal(BaseException):
    """The exception of a signal handler."""


class OrdinarySignal(Exception):
    """An ordinary exception of a signal handler, such as a time limit."""


class CutsIn:
    """Raises the signal where the interpreter looks for one the n-th time in library code.

    :cvar covers: whether a code object is interrupted.
    """

    @staticmethod
    def covers(code):
        return is_ours(code)

    def __init__(self, number, kind=Signal):
        self.number, self.looks, self.where, self.kind = number, 0, None, kind
        self.last = {}  # the instruction before, of each frame

    def __call__(self, frame, event, argument):
        if not self.covers(frame.f_code):
            return None
        frame.f_trace_opcodes = True  # Python 3.13 forgets it if only the call sets it
        if event == "call" and frame.f_back in self.last:
            self.last[frame.f_back] = ""  # the call led into Python code
        elif event == "return":
            self.last.pop(frame, None)
        elif event == "opcode":
            before = self.last.get(frame, "")
            now = self.last[frame] = names(frame.f_code)[frame.f_lasti]
            if now == "PUSH_EXC_INFO":  # what raises leads here without a look
                return self
            if before in CALLS or before in LOOKS or "JUMP_BACKWARD" in before:
                self.looks += 1
                if self.looks >= self.number and not in_finalizer(frame):
                    self.number = sys.maxsize  # once
                    self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    raise self.kind
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        start_opcode_events()
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(self.before)
        self.last.clear()


@cache
def start_opcode_events():
    """Python 3.12 sends no opcode events in the first call that asks for them."""

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        return trace

    sys.settrace(trace)
    for _ in range(2):
        names(start_opcode_events.__wrapped__.__code__)
    sys.settrace(None)


class InterruptsOnly:
    """A real signal that interrupts one function of the main thread, once.

    The handler ignores a signal that arrives in another frame: Python swallows an exception of a
    finalizer or of a weakref callback, and both run at any time.
    """

    def __init__(self, function):
        self.code, self.is_over, self.sending = function.__code__, False, Lock()

    def send(self):
        """Send the signal from another thread until it has interrupted the function."""
        with self.sending:
            while not self.is_over:
                signal.pthread_kill(main_thread().ident, signal.SIGUSR1)
                time.sleep(0.001)  # the signal is repeated until it comes in the function

    def _handle(self, number, frame):
        if frame.f_code is self.code and not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt

    def __enter__(self):
        self.before = signal.signal(signal.SIGUSR1, self._handle)
        return self

    def __exit__(self, *_):
        self.is_over = True
        with self.sending:  # a signal without its handler would end the process
            signal.signal(signal.SIGUSR1, self.before)


@cache
def is_ours(code):
    """Whether it is library code that drives executions."""
    path = Path(code.co_filename)
    return path.is_relative_to(LIBRARY) and not path.is_relative_to(LIBRARY / "testing")


def in_finalizer(frame):
    """Whether an exception raised here is ignored."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@cache
def names(code):
    return {each.offset: each.opname for each in dis.get_instructions(code)}


def left_behind(run, kind=Signal):
    """The leftovers of a run, interrupted at each possible point.

    :param run: takes a ``CutsIn``, does its work in it, and returns the leftovers.
    :param kind: of what the handler raises.
    """
    collects = gc.isenabled()
    # Interrupted frames are collected here: not in another test, nor in another thread, where
    # CPython 3.12 crashes over a generator that is traced.
    gc.disable()
    try:
        for _ in range(2):  # the first one makes the code ready to be traced
            left, looks = _after(run, sys.maxsize, kind)
        assert looks > 3
        for number in range(1 + random.randrange(STRIDE), looks + 1, STRIDE):
            left += _after(run, number, kind)[0]
        return left
    finally:
        if collects:
            gc.enable()


def _after(run, number, kind):
    cuts_in, left = CutsIn(number, kind), []
    # In a thread of its own: a trace function that raises may leave the interpreter thinking that
    # an exception is being handled.
    thread = Thread(target=lambda: left.extend(run(cuts_in)))
    thread.start()
    thread.join()
    gc.collect(0)
    return left, cuts_in.looks
