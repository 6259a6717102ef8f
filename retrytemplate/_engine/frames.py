"""The stack of frames of the executions and deadlines that are in force."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any

__all__ = [
    "CONTEXT",
    "CURRENT",
    "DEADLINE",
    "FUNCTION",
    "OUTER",
    "OWNER",
    "PLAN",
    "STARTED",
    "ExecutionFrame",
    "close_context",
    "detach_frame",
    "enclosing_frame",
    "exit_frame",
    "reset_frame",
]

# All that travels with a call, one variable for all of it.  A frame is a list made afresh for each
# call (so that child tasks never share what they write): the context or None until it is requested
# it; who makes it on demand; the deadline in force; the frame outside; the settings it began with;
# the function that is called; when the call began, where that is measured.
ExecutionFrame = list[Any]
CONTEXT, OWNER, DEADLINE, OUTER, PLAN, FUNCTION, STARTED = range(7)
# Whether any deadline was entered in this process: who uses none has nothing to look for.
any_deadline_entered = False
EXITED = object()  # instead of the settings: left before a frame that was entered later
CURRENT: ContextVar[ExecutionFrame | None] = ContextVar("retrytemplate", default=None)


def reset_frame(token: Any, outer: ExecutionFrame | None) -> None:
    """Make the frame outside current again, in the thread where another was entered.

    :param token: None: a signal came before anybody had it.
    """
    if token is None:
        CURRENT.set(outer)
    else:  # this leaves nothing behind, where a value that is set makes every later change slower
        CURRENT.reset(token)


def exit_frame(frame: ExecutionFrame, token: Any) -> None:
    """Make the frame outside current again.

    One that is not the innermost (of two generators that hold a block open in turn), or is left
    from another context (a suspended coroutine is closed), says no more and goes with the next.
    """
    outer = frame[OUTER]
    if isinstance(sys.exception(), GeneratorExit):
        # The collector may be closing a coroutine.  Within it, CPython 3.11 crashes where a context
        # variable changes that is being changed around it.
        detach_frame(frame)
    elif CURRENT.get() is frame:
        try:
            CURRENT.reset(token)
        except ValueError:  # here is a copy of the context in which it was entered
            CURRENT.set(outer)
            detach_frame(frame)
        if outer is not None:
            current_frame()
    else:
        detach_frame(frame)


def detach_frame(frame: ExecutionFrame) -> None:
    """Mark a frame as exited that may still be current elsewhere; its enclosing frame applies."""
    frame[CONTEXT] = frame[OWNER] = None
    frame[PLAN] = EXITED
    _drop_deadlines(frame)
    _drop_deadlines(CURRENT.get())  # it may have been left first, with this deadline in force


def _drop_deadlines(frame: ExecutionFrame | None) -> None:
    """Set the deadline of exited frames, from this one outwards, to the enclosing deadline."""
    active = _nearest_active_frame(frame)
    while frame is not None and frame is not active:
        frame[DEADLINE] = None if active is None else active[DEADLINE]
        frame = frame[OUTER]


def _nearest_active_frame(frame: ExecutionFrame | None) -> ExecutionFrame | None:
    """The nearest frame that was not exited before a later one."""
    while frame is not None and (
        frame[PLAN] is EXITED or getattr(frame[CONTEXT], "_exited", False)
    ):
        frame = frame[OUTER]
    return frame


def enclosing_frame() -> ExecutionFrame | None:
    """The frame around one that is entered now; it may be left before that one is."""
    outer = current_frame()
    if outer is not None:
        cover = getattr(outer[CONTEXT], "_on_nested_entry", None)
        if cover is not None:
            cover(outer)
    return outer


def current_frame() -> ExecutionFrame | None:
    """The current frame, without those that were exited before a later one."""
    here = CURRENT.get()
    frame = _nearest_active_frame(here)
    if frame is not here:
        CURRENT.set(frame)
    return frame


def close_context(frame: ExecutionFrame) -> None:
    """Close the context of an inline attempt; without a context, none can be made any more."""
    context = frame[CONTEXT]
    if context is None:
        frame[OWNER] = None  # a task that was begun within may live on
    else:
        context.closed = True
