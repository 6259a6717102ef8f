"""What a LangGraph node asks with ``interrupt()``, counted from the first again by each attempt.

An answer is found by the number of its question in this run of the node.  LangGraph's own retry
counts anew; one inside of the node has to as well, or a question gets the answer of another.
"""

from __future__ import annotations

import sys
from dataclasses import is_dataclass, replace
from functools import update_wrapper
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from retrytemplate.control.strategy import Wraps

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["CountingAnew"]

SCRATCHPAD = "__pregel_scratchpad"


@define
class Questions:
    """Those of the run of a node, from a place in it on."""

    settings: dict[str, Any]
    asked: int

    @classmethod
    def from_here(cls) -> Self | None:
        """Those that are yet to be asked; None outside of a graph."""
        config = sys.modules.get("langgraph.config")
        if config is None:
            return None
        try:
            settings = config.get_config()["configurable"]
        except (AttributeError, KeyError, RuntimeError):
            return None
        notes = settings.get(SCRATCHPAD)
        counter = getattr(notes, "interrupt_counter", None)
        if counter is None or not is_dataclass(notes):
            return None
        return cls(settings, counter())

    def before_each(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose questions have the same numbers in each call."""

        def attempt(*args: Any, **kwargs: Any) -> Any:
            counter = count(self.asked).__next__
            self.settings[SCRATCHPAD] = replace(
                self.settings[SCRATCHPAD], interrupt_counter=counter
            )
            return fn(*args, **kwargs)

        return update_wrapper(attempt, fn)


@frozen
class CountingAnew(Wraps):
    """A template whose attempts ask the same questions."""

    template: Any

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        questions = Questions.from_here()
        attempt = fn if questions is None else questions.before_each(fn)
        return self.template.call(attempt, *args, **kwargs)

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        questions = Questions.from_here()
        attempt = fn if questions is None else questions.before_each(fn)
        return await self.template.call_async(attempt, *args, **kwargs)
