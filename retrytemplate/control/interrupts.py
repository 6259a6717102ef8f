"""What a LangGraph node asks with ``interrupt()``, under the same numbers in each attempt.

An answer is found by the number of its question in this run of the node.  LangGraph's own retry
counts anew; one inside of the node has to as well, or a question gets the answer of another.  Only
for what is asked in the attempt, though: elsewhere in the node the count goes on.

LangGraph has no public way in: for the run of a node its counter, a private one, is replaced.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache, update_wrapper
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from retrytemplate.control.strategy import Wraps
from retrytemplate.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["SameQuestions"]

LOG = logging.getLogger("retrytemplate.control")
SCRATCHPAD, COUNTER = "__pregel_scratchpad", "interrupt_counter"
OF_A_NODE = "__pregel_"


@define(eq=False)
class Questions:
    """Those of a function that is called again and again, while the block is open."""

    counter: Counter
    around: Attempt | None
    numbers: list[int] = field(init=False, factory=list)
    lock: threading.Lock = field(init=False, factory=threading.Lock)

    @classmethod
    def of_this_run(cls) -> Self | None:
        """None outside of a graph."""
        counter = _counter()
        return None if counter is None else cls(counter, ASKING.get())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        # A suspended coroutine is closed from anywhere: what somebody asks there is not ours.
        if kind is not GeneratorExit:
            ASKING.set(self.around)

    def from_the_first(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of which begins with the first question."""

        def attempt(*args: Any, **kwargs: Any) -> Any:
            ASKING.set(Attempt(self))
            return fn(*args, **kwargs)

        return update_wrapper(attempt, fn)


@define(eq=False)
class Attempt:
    """One call of that function; what was begun in it may still ask when it has failed."""

    questions: Questions
    asked: int = field(init=False, default=0)

    def number(self) -> int:
        """That of the next question: as in the attempt before, if it was asked there."""
        of_all = self.questions
        with of_all.lock:
            if self.asked == len(of_all.numbers):
                of_all.numbers.append(of_all.counter.number(of_all.around))
            self.asked += 1
            return of_all.numbers[self.asked - 1]


@define(eq=False)
class Counter:
    """In the place of LangGraph's own."""

    usual: Callable[[], int]

    def __call__(self) -> int:
        return self.number(ASKING.get())

    def number(self, asking: Attempt | None) -> int:
        """From whom it is that asks, unless they belong to a graph outside of this one."""
        if asking is None or asking.questions.counter is not self:
            return self.usual()
        return asking.number()


ASKING: ContextVar[Attempt | None] = ContextVar("retrytemplate.interrupts", default=None)


def _counter() -> Counter | None:
    """The counter of the node that runs, ours now."""
    config = sys.modules.get("langgraph.config")
    if config is None:
        return None
    try:
        settings = config.get_config()["configurable"]
    except (AttributeError, KeyError, RuntimeError):
        return None
    notes = settings.get(SCRATCHPAD)
    if not is_dataclass(notes) or COUNTER not in (each.name for each in fields(notes)):
        if any(key.startswith(OF_A_NODE) for key in settings):
            say_that_it_is_elsewhere()
        return None
    usual = getattr(notes, COUNTER)
    if isinstance(usual, Counter):
        return usual
    counter = Counter(usual)
    object.__setattr__(notes, COUNTER, counter)  # one object for all that copy the configuration
    return counter


@cache
def say_that_it_is_elsewhere() -> None:
    """Once in a process: it holds for every node."""
    LOG.warning(
        "this LangGraph keeps the number of a question where nobody looks for it: in a node that "
        "is retried, a further attempt may be given the answer to another question"
    )


@frozen
class SameQuestions(Wraps):
    """A template whose attempts ask the same questions."""

    template: Any
    nested: bool = False

    def wrap(self, fn: Any, /) -> Any:
        """The node with retry around each run.

        :raises MisuseError: a template has wrapped it already, and ``nested`` is False.
        """
        kind = type(self)
        return wrap(
            self.template,
            fn,
            nested=self.nested,
            make=lambda template, node: kind(template)._wrapped(node),
        )

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        questions = Questions.of_this_run()
        if questions is None:
            return self.template.call(fn, *args, **kwargs)
        with questions:
            return self.template.call(questions.from_the_first(fn), *args, **kwargs)

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        questions = Questions.of_this_run()
        if questions is None:
            return await self.template.call_async(fn, *args, **kwargs)
        with questions:
            return await self.template.call_async(questions.from_the_first(fn), *args, **kwargs)
